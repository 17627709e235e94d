"""A script in the style of releases 1.6 and 1.7 with cs_ip: the import lines, checks and calls of such scripts."""

import argparse
import inspect
import os
import sys

import tensorflow as tf

try:
    import tfwse  # noqa: F401
    from cerebras.tf.ws.cs_estimator_ws import CerebrasEstimator as Base

    is_weight_streaming = True
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
from cerebras.pb.common.tri_state_pb2 import TS_ENABLED
from cerebras.pb.stack.full_pb2 import FullConfig
from cerebras.tf.host_call import host_call_to_eval_metric_ops, validate_host_call  # noqa: F401
from cerebras.tf.summary import cs1_disable_summaries, cs1_enable_summaries
from cerebras.tf.tf_helper import GetWeights, boundary_cast, summary_layer
from tensorflow.keras.layers import Dense, Layer
from tensorflow.python.keras.mixed_precision.experimental.loss_scale_optimizer import LossScaleOptimizer  # noqa: F401
from tensorflow.python.training.session_run_hook import SessionRunHook  # noqa: F401

MODES = tf.estimator.ModeKeys


class CerebrasEstimator(Base):
    """The estimator of the model codes: passes on what the base class takes."""

    def __init__(self, model_fn, model_dir=None, compile_dir=None, config=None, params=None, warm_start_from=None):
        self.__class__._assert_members_are_not_overridden = lambda _: None
        kwargs = {"model_fn": model_fn, "model_dir": model_dir, "config": config, "params": params}
        if Base.__name__ == "CerebrasEstimator":
            kwargs["compile_dir"] = compile_dir
        super().__init__(warm_start_from=warm_start_from, **kwargs)

    def train(
        self, input_fn, hooks=None, steps=None, max_steps=None, saving_listeners=None, use_cs=True, sparsifier=None
    ):
        kwargs = {"hooks": hooks, "steps": steps, "max_steps": max_steps, "saving_listeners": saving_listeners}
        if Base.__name__ == "CerebrasEstimator":
            kwargs["use_cs"] = use_cs
            if is_weight_streaming:
                kwargs["sparsifier"] = sparsifier
        return super().train(input_fn=input_fn, **kwargs)


class CSEstimatorSpec(BaseSpec):
    """The spec of the model codes."""

    def __new__(cls, mode, host_call=None, **kwargs):
        if BaseSpec.__name__ == "CSEstimatorSpec":
            return super().__new__(cls, mode, host_call=host_call, **kwargs)
        if host_call is not None:
            kwargs["eval_metric_ops"] = host_call_to_eval_metric_ops(host_call)
        return super().__new__(cls, mode, **kwargs)


class DenseLayer(Layer):
    """A layer that sets its dtypes itself, as those of 1.6 do."""

    def __init__(self, units, initializer, policy, **kwargs):
        super().__init__(**kwargs)
        self.dtype_policy = policy
        self.variable_dtype = policy.variable_dtype
        self.compute_dtype = policy.compute_dtype
        self.layer = Dense(units, kernel_initializer=initializer, dtype=policy)

    def call(self, inputs):
        return summary_layer(boundary_cast(self.layer(inputs), name="out"))


def model_fn(features, labels, mode, params):
    policy = tf.keras.mixed_precision.experimental.Policy(
        "mixed_float16" if params["model"]["mixed_precision"] else "float32", loss_scale=None
    )
    tf.keras.mixed_precision.experimental.set_policy(policy)
    initializer = tf.keras.initializers.VarianceScaling(scale=1.0, mode="fan_avg", distribution="uniform")
    net = DenseLayer(16, initializer, policy)(features["x"])
    net = DenseLayer(16, initializer, policy)(tf.nn.relu(net))
    logits = tf.cast(DenseLayer(4, initializer, policy)(net), tf.float32)
    predictions = tf.argmax(logits, axis=-1, output_type=tf.int32)
    if mode == MODES.PREDICT:
        return CSEstimatorSpec(mode, predictions={"class": predictions})
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    host_call = None
    train_op = None
    if mode == MODES.TRAIN:
        tf.compat.v1.summary.scalar("extra/loss", loss)
        optimizer = tf.compat.v1.train.AdamOptimizer(0.01)
        scale = params["optimizer"]["loss_scaling_factor"]
        if scale != 1.0:
            loss_scale = (
                scale
                if scale != "dynamic"
                else tf.compat.v1.train.experimental.DynamicLossScale(initial_loss_scale=2.0**8, increment_period=4)
            )
            optimizer = tf.compat.v1.train.experimental.MixedPrecisionLossScaleOptimizer(optimizer, loss_scale)
        train_op = optimizer.minimize(loss, tf.compat.v1.train.get_or_create_global_step())
    elif mode == MODES.EVAL:

        def metric_fn(pred, labels):
            return {"eval/accuracy": tf.compat.v1.metrics.accuracy(labels=labels, predictions=pred)}

        host_call = (metric_fn, [predictions, labels])
    return CSEstimatorSpec(mode, host_call=host_call, loss=loss, train_op=train_op, training_hooks=[])


def make_input(is_training):
    def input_fn(params, input_context=None):
        generator = tf.random.Generator.from_seed(7) if False else None
        assert generator is None
        x = tf.random.stateless_normal([64, 8], seed=[1, 2])
        y = tf.cast(tf.argmax(x[:, :4], axis=1), tf.int32)
        data = tf.data.Dataset.from_tensor_slices(({"x": x}, y))
        data = data.repeat() if is_training else data
        return data.batch(params["train_input"]["batch_size"], drop_remainder=True)

    return input_fn


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-m", "--mode", required=True)
    parser.add_argument("-o", "--model_dir", required=True)
    parser.add_argument("--max_steps", type=int, default=6)
    parser.add_argument("--eval_steps", type=int, default=2)
    parser.add_argument("--cs_ip")
    parser.add_argument("--validate_only", action="store_true")
    parser.add_argument("--compile_only", action="store_true")
    parser.add_argument("--mixed_precision", action="store_true")
    parser.add_argument("--loss_scaling", default="1.0")
    parser.add_argument("--checkpoint_path")
    arguments = parser.parse_args()
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.INFO)
    tf.compat.v1.disable_eager_execution()
    scale = arguments.loss_scaling if arguments.loss_scaling == "dynamic" else float(arguments.loss_scaling)
    params = {
        "train_input": {"batch_size": 8},
        "model": {"mixed_precision": arguments.mixed_precision},
        "optimizer": {"loss_scaling_factor": scale},
        "runconfig": vars(arguments),
    }
    config_kwargs = {
        "save_checkpoints_steps": 3,
        "log_step_count_steps": 1,
        "save_summary_steps": 1,
        "tf_random_seed": 3,
    }
    if BaseConfig.__name__ == "CSRunConfig":
        full = FullConfig()
        full.matching.kernel.autogen_config.always_store_inputs = TS_ENABLED
        config_kwargs.update(cs_ip=arguments.cs_ip and arguments.cs_ip + ":9000", stack_params={"config": full})
    assert inspect.getargspec(BaseSpec.__new__).args[0] in ("cls", "_cls")
    with cs1_enable_summaries() if arguments.mode == "train" else cs1_disable_summaries():
        estimator = CerebrasEstimator(
            model_fn,
            arguments.model_dir,
            params=params,
            config=BaseConfig(**config_kwargs),
            warm_start_from=arguments.checkpoint_path,
        )
        if arguments.compile_only or arguments.validate_only:
            estimator.compile(make_input(True), arguments.validate_only, MODES.TRAIN)
        elif arguments.mode == "train":
            estimator.train(make_input(True), max_steps=arguments.max_steps, use_cs=arguments.cs_ip is not None)
        elif arguments.mode == "eval":
            print("RESULT", sorted(estimator.evaluate(make_input(False), steps=arguments.eval_steps)))
        elif arguments.mode == "eval_all":
            for path in tf.train.get_checkpoint_state(arguments.model_dir).all_model_checkpoint_paths:
                print("RESULT", estimator.evaluate(make_input(False), checkpoint_path=path)["global_step"])
        elif arguments.mode == "predict":
            print("RESULT", len(list(estimator.predict(make_input(False), num_samples=5))))
        elif arguments.mode == "train_and_eval":
            tf.estimator.train_and_evaluate(
                estimator,
                tf.estimator.TrainSpec(make_input(True), max_steps=arguments.max_steps),
                tf.estimator.EvalSpec(make_input(False), steps=2, throttle_secs=0),
            )
    latest = tf.train.latest_checkpoint(arguments.model_dir)
    if latest:
        weights = dict(list(GetWeights(latest)))
        kernels = [name for name in weights if name.endswith("kernel")]
        print("WEIGHTS", int(weights["global_step"]), len(kernels))
    print("BASE", Base.__name__, is_weight_streaming, os.path.basename(sys.argv[0]))


if __name__ == "__main__":
    main()
