"""Releases 1.7 and 1.8: the installed package decides where the base classes come from."""

import enum
import importlib.util

import tensorflow as tf


class CSoftPackage(enum.Enum):
    SRC = 0
    WHEEL = 1
    NONE = 2


def detect():
    if importlib.util.find_spec("cerebras") and importlib.util.find_spec("cerebras.framework"):
        return CSoftPackage.SRC
    return CSoftPackage.WHEEL if importlib.util.find_spec("cerebras_appliance") else CSoftPackage.NONE


CSOFT_PACKAGE = detect()
if CSOFT_PACKAGE == CSoftPackage.WHEEL:
    from cerebras_appliance.cs_run_config import CSRunConfig as BaseConfig
    from cerebras_appliance.environment import appliance_environ
    from cerebras_tensorflow.cs_estimator_app import CerebrasAppEstimator as Base
    from cerebras_tensorflow.cs_estimator_spec import CSEstimatorSpec as BaseSpec
    from cerebras_tensorflow.graph_extraction import cs1_disable_summaries, cs1_enable_summaries

    appliance_environ["PYTHONHASHSEED"] = "0"
    appliance_environ["TF_DETERMINISTIC_OPS"] = "1"
elif CSOFT_PACKAGE == CSoftPackage.NONE:
    from contextlib import nullcontext as cs1_disable_summaries
    from contextlib import nullcontext as cs1_enable_summaries

    from tensorflow_estimator.python.estimator.estimator import Estimator as Base
    from tensorflow_estimator.python.estimator.model_fn import EstimatorSpec as BaseSpec
    from tensorflow_estimator.python.estimator.run_config import RunConfig as BaseConfig
else:
    raise AssertionError(f"Invalid value for CSOFT_PACKAGE {CSOFT_PACKAGE}")


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

    def compile(self, input_fn, validate_only=False, mode=tf.estimator.ModeKeys.TRAIN):
        super().compile(input_fn, validate_only, mode)

    def train(
        self, input_fn, hooks=None, steps=None, max_steps=None, saving_listeners=None, use_cs=True, sparsifier=None
    ):
        return super().train(
            input_fn=input_fn,
            hooks=hooks,
            steps=steps,
            max_steps=max_steps,
            saving_listeners=saving_listeners,
            use_cs=use_cs,
        )

    def evaluate(self, input_fn, steps=None, hooks=None, checkpoint_path=None, name=None, use_cs=False):
        return super().evaluate(
            input_fn=input_fn, steps=steps, hooks=hooks, checkpoint_path=checkpoint_path, name=name, use_cs=use_cs
        )


class CSRunConfig(BaseConfig):
    def __init__(self, cs_config=None, **kwargs):
        super().__init__(cs_config=cs_config, **kwargs)


class CSEstimatorSpec(BaseSpec):
    def __new__(cls, mode, host_call=None, **kwargs):
        return super().__new__(cls, mode, host_call=host_call, **kwargs)
