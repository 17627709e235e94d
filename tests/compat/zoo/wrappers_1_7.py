"""Release 1.7 inside the container: all names come from the container's package."""

import inspect
from importlib.util import find_spec

import tensorflow as tf

if find_spec("cerebras.framework") is None:
    raise AssertionError("this script runs under csrun_wse")

try:
    import tfwse
    from cerebras.tf.ws.cs_estimator_ws import CerebrasEstimator as Base

    is_weight_streaming = True
except ImportError:
    from cerebras.tf.cs_estimator import CerebrasEstimator as Base

    is_weight_streaming = False
from cerebras.tf.cs_estimator_spec import CSEstimatorSpec as BaseSpec
from cerebras.tf.host_call import host_call_to_eval_metric_ops, validate_host_call
from cerebras.tf.run_config import CSRunConfig as BaseConfig
from cerebras.tf.summary import cs1_disable_summaries, cs1_enable_summaries


class GetWeights:
    """The weights of a checkpoint through TensorFlow's reader."""

    def __init__(self, path):
        self._reader = tf.compat.v1.train.NewCheckpointReader(path)
        self.var_names = sorted(self._reader.get_variable_to_shape_map())

    def __iter__(self):
        return iter((name, self._reader.get_tensor(name)) for name in self.var_names)


class CerebrasEstimator(Base):
    def __init__(self, model_fn, model_dir=None, compile_dir=None, config=None, params=None, warm_start_from=None):
        self.__class__._assert_members_are_not_overridden = lambda _: None
        super().__init__(
            model_fn=model_fn,
            model_dir=model_dir,
            config=config,
            params=params,
            warm_start_from=warm_start_from,
            compile_dir=compile_dir,
        )

    def train(
        self, input_fn, hooks=None, steps=None, max_steps=None, saving_listeners=None, use_cs=True, sparsifier=None
    ):
        more = {"sparsifier": sparsifier} if is_weight_streaming else {}
        return super().train(
            input_fn=input_fn,
            hooks=hooks,
            steps=steps,
            max_steps=max_steps,
            saving_listeners=saving_listeners,
            use_cs=use_cs,
            **more,
        )


class CSRunConfig(BaseConfig):
    def __init__(self, cs_ip=None, system_name=None, cs_config=None, stack_params=None, **kwargs):
        super().__init__(cs_ip=cs_ip, system_name=system_name, cs_config=cs_config, stack_params=stack_params, **kwargs)


class CSEstimatorSpec(BaseSpec):
    def __new__(cls, mode, host_call=None, **kwargs):
        if host_call is not None:
            validate_host_call(host_call)
        spec = super().__new__(cls, mode, host_call=host_call, **kwargs)
        names = inspect.getfullargspec(tf.estimator.EstimatorSpec).args[1:]
        given = {name: getattr(spec, name) for name in names}
        if mode == tf.estimator.ModeKeys.EVAL and host_call is not None:
            given["eval_metric_ops"] = host_call_to_eval_metric_ops(host_call)
        tf.estimator.EstimatorSpec(**given)
        return spec
