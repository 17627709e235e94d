"""Release 1.6: no package detection. Each import tries the package's possible homes, then TensorFlow."""

import inspect

import tensorflow as tf

try:
    import tfwse

    is_weight_streaming = True
    from cerebras.tf.ws.cs_estimator_ws import CerebrasEstimator as Base
except ImportError:
    is_weight_streaming = False
    try:
        from cerebras.tf.cs_estimator import CerebrasEstimator as Base
    except ImportError:
        from tensorflow_estimator.python.estimator.estimator import Estimator as Base
try:
    from cerebras.tf.run_config import CSRunConfig as BaseConfig
except ImportError:
    from tensorflow_estimator.python.estimator.run_config import RunConfig as BaseConfig
try:
    from cerebras.tf.cs_estimator_spec import CSEstimatorSpec as BaseSpec
except ImportError:
    from tensorflow_estimator.python.estimator.model_fn import EstimatorSpec as BaseSpec
try:
    from cerebras.tf.host_call import host_call_to_eval_metric_ops, validate_host_call
    from cerebras.tf.summary import cs1_disable_summaries, cs1_enable_summaries
except:
    from contextlib import nullcontext as cs1_disable_summaries
    from contextlib import nullcontext as cs1_enable_summaries

    def validate_host_call(host_call):
        pass

    def host_call_to_eval_metric_ops(host_call):
        return host_call[0](*host_call[1])


try:
    from cerebras.tf.tf_helper import GetWeights
except ImportError:
    pass
try:
    from cerebras.tf.ws.ws_sparsify import SPARSIFIER_MAP, get_AdamW_aware_sparsifier_class
except:
    SPARSIFIER_MAP = None

on_container = Base.__name__ == "CerebrasEstimator"


class CerebrasEstimator(Base):
    def __init__(self, model_fn, model_dir=None, compile_dir=None, config=None, params=None, warm_start_from=None):
        self.__class__._assert_members_are_not_overridden = lambda _: None
        kwargs = {"model_dir": model_dir, "config": config, "params": params, "warm_start_from": warm_start_from}
        if on_container:
            kwargs["compile_dir"] = compile_dir
            super().__init__(model_fn=model_fn, **kwargs)
        else:
            super().__init__(model_fn=self.converted(model_fn), **kwargs)

    def converted(self, model_fn):
        """Wrap model_fn for TensorFlow's Estimator, which passes only known arguments."""
        taken = (
            inspect.getargspec(model_fn).args
            if hasattr(inspect, "getargspec")
            else inspect.getfullargspec(model_fn).args
        )

        def wrapped(features, labels, mode, params):
            given = {"features": features, "labels": labels, "mode": mode, "params": params}
            return model_fn(**{name: given[name] for name in taken})

        return wrapped

    def compile(self, input_fn, validate_only=False, mode=tf.estimator.ModeKeys.TRAIN):
        if on_container:
            super().compile(input_fn, validate_only, mode)
        else:
            tf.compat.v1.logging.warning("Running outside the Cerebras Container, so compile will not take place.")

    def train(
        self, input_fn, hooks=None, steps=None, max_steps=None, saving_listeners=None, use_cs=True, sparsifier=None
    ):
        kwargs = {
            "input_fn": input_fn,
            "hooks": hooks,
            "steps": steps,
            "max_steps": max_steps,
            "saving_listeners": saving_listeners,
        }
        if on_container:
            kwargs["use_cs"] = use_cs
            if is_weight_streaming:
                kwargs["sparsifier"] = sparsifier
        return super().train(**kwargs)

    def evaluate(self, input_fn, steps=None, hooks=None, checkpoint_path=None, name=None, use_cs=False):
        kwargs = {
            "input_fn": input_fn,
            "steps": steps,
            "hooks": hooks,
            "checkpoint_path": checkpoint_path,
            "name": name,
        }
        return super().evaluate(**kwargs, **({"use_cs": use_cs} if on_container else {}))

    def predict(
        self,
        input_fn,
        predict_keys=None,
        hooks=None,
        checkpoint_path=None,
        yield_single_examples=True,
        num_samples=None,
        use_cs=False,
    ):
        kwargs = {
            "input_fn": input_fn,
            "predict_keys": predict_keys,
            "hooks": hooks,
            "checkpoint_path": checkpoint_path,
            "yield_single_examples": yield_single_examples,
        }
        more = {"use_cs": use_cs, "num_samples": num_samples} if on_container else {}
        yield from super().predict(**kwargs, **more)


class CSRunConfig(BaseConfig):
    def __init__(self, cs_ip=None, system_name=None, cs_config=None, stack_params=None, **kwargs):
        if BaseConfig.__name__ == "CSRunConfig":
            super().__init__(
                cs_ip=cs_ip, system_name=system_name, cs_config=cs_config, stack_params=stack_params, **kwargs
            )
        else:
            super().__init__(**kwargs)


class CSEstimatorSpec(BaseSpec):
    def __new__(cls, mode, host_call=None, **kwargs):
        if BaseSpec.__name__ == "CSEstimatorSpec":
            return super().__new__(cls, mode, host_call=host_call, **kwargs)
        if host_call is not None:
            if kwargs.get("eval_metric_ops") is not None:
                raise ValueError("Please specify only one of `host_call` or `eval_metric_ops`, not both.")
            validate_host_call(host_call)
            kwargs["eval_metric_ops"] = host_call_to_eval_metric_ops(host_call)
        known = inspect.getfullargspec(tf.estimator.EstimatorSpec.__new__).args[1:]
        return super().__new__(cls, mode, **{key: value for key, value in kwargs.items() if key in known})
