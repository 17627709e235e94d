"""A script in the style of release 1.8: the appliance wheel's import lines and calls; TensorFlow is imported first."""

import argparse
from importlib.util import find_spec

import tensorflow as tf

if find_spec("cerebras") is not None and find_spec("cerebras.framework") is not None:
    raise AssertionError("Invalid value for CSOFT_PACKAGE CSoftPackage.SRC")
assert find_spec("cerebras_appliance") is not None

from cerebras_appliance.cs_run_config import CSRunConfig as CSRunConfigBase  # noqa: E402
from cerebras_appliance.CSConfig import CSConfig  # noqa: E402
from cerebras_appliance.environment import appliance_environ  # noqa: E402
from cerebras_appliance.pb.stack.full_pb2 import FullConfig  # noqa: E402
from cerebras_appliance.pb.workflow.appliance.common.common_config_pb2 import DebugArgs, ExecutionStrategy  # noqa: E402
from cerebras_appliance.run_utils import get_debug_args  # noqa: E402, F401
from cerebras_tensorflow.cs_estimator_app import CerebrasAppEstimator  # noqa: E402
from cerebras_tensorflow.cs_estimator_spec import CSEstimatorSpec as CSEstimatorSpecBase  # noqa: E402
from cerebras_tensorflow.graph_extraction import cs1_disable_summaries  # noqa: E402
from cerebras_tensorflow.summary import boundary_cast, summary_layer  # noqa: E402, F401
from google.protobuf.json_format import MessageToJson  # noqa: E402
from tensorflow.keras.layers import Dense, LayerNormalization  # noqa: E402
from tensorflow_estimator.python.estimator.estimator import Estimator  # noqa: E402

from cerebras_tensorflow.saver.checkpoint_reader import CheckpointReader  # noqa: E402

appliance_environ["PYTHONHASHSEED"] = "0"


class CerebrasEstimator(CerebrasAppEstimator):
    """The estimator of the model codes."""

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


class CSRunConfig(CSRunConfigBase):
    """The run config of the model codes."""

    def __init__(self, cs_config=None, **kwargs):
        super().__init__(cs_config=cs_config, **kwargs)


class CSEstimatorSpec(CSEstimatorSpecBase):
    """The spec of the model codes."""

    def __new__(cls, mode, host_call=None, **kwargs):
        return super().__new__(cls, mode, host_call=host_call, **kwargs)


def model_fn(features, labels, mode, params):
    initializer = tf.keras.initializers.TruncatedNormal(stddev=0.5)
    hidden = LayerNormalization(name="ln")(Dense(16, "relu", kernel_initializer=initializer, name="one")(features))
    logits = Dense(4, kernel_initializer=initializer, name="two")(boundary_cast(hidden))
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    train_op, metrics = None, None
    if mode == tf.estimator.ModeKeys.TRAIN:
        optimizer = tf.compat.v1.train.MomentumOptimizer(0.1, 0.9)
        train_op = optimizer.minimize(loss, tf.compat.v1.train.get_or_create_global_step())
    else:
        metrics = {"eval/accuracy": tf.compat.v1.metrics.accuracy(labels, tf.argmax(logits, 1, tf.int32))}
    return CSEstimatorSpec(mode, loss=loss, train_op=train_op, eval_metric_ops=metrics, training_hooks=[])


def input_fn(params):
    x = tf.random.stateless_normal([32, 8], seed=[1, 2])
    y = tf.cast(tf.argmax(x[:, :4], axis=1), tf.int32)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8, drop_remainder=True)
    return data.repeat() if params["runconfig"]["mode"] == "train" else data


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("target", choices=["CPU", "CSX"])
    parser.add_argument("strategy", nargs="?", choices=["pipeline", "weight_streaming"])
    parser.add_argument("-m", "--mode", required=True)
    parser.add_argument("-o", "--model_dir", required=True)
    parser.add_argument("--max_steps", type=int, default=6)
    parser.add_argument("--compile_only", action="store_true")
    parser.add_argument("--validate_only", action="store_true")
    parser.add_argument("--checkpoint_path")
    arguments = parser.parse_args()
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.INFO)
    strategy = {
        "pipeline": ExecutionStrategy.ES_PIPELINE,
        "weight_streaming": ExecutionStrategy.ES_WEIGHT_STREAMING,
        None: None,
    }[arguments.strategy]
    debug_args = DebugArgs()
    debug_args.debug_mgr.clean_pod_policy = DebugArgs.DebugMGR.CleanPodPolicy.NONE
    debug_args.debug_mgr.task_spec_hints["chief"].container_image = "image"
    debug_args.debug_crd.pipeline_options.full_config = MessageToJson(
        FullConfig(target_num_replicas=-1), including_default_value_fields=False, preserving_proto_field_name=True
    )
    config = CSRunConfig(
        cs_config=CSConfig(
            num_csx=1,
            max_wgt_servers=None,
            max_act_per_csx=None,
            mgmt_address="cluster",
            mgmt_namespace=None,
            credentials_path=None,
            debug_args=debug_args,
            mount_dirs=["/data"],
            python_paths=None,
            transfer_processes=None,
            num_workers_per_csx=None,
            execution_strategy=strategy,
            job_labels=None,
            job_time_sec=None,
            disable_version_check=None,
        ),
        save_checkpoints_steps=3,
        log_step_count_steps=None,
        tf_random_seed=5,
        keep_checkpoint_max=0,
    )
    params = {"runconfig": {"mode": arguments.mode, "use_cs_grad_accum": None}, "model": {"precision_opt_level": 1}}
    with cs1_disable_summaries():
        use_cs = arguments.target == "CSX"
        estimator = CerebrasEstimator(
            model_fn,
            params=params,
            config=config,
            model_dir=arguments.model_dir,
            compile_dir=arguments.model_dir + "/compiled",
            warm_start_from=arguments.checkpoint_path,
        )
        assert isinstance(estimator, Estimator)
        if arguments.compile_only or arguments.validate_only:
            estimator.compile(input_fn, validate_only=arguments.validate_only or None, mode=tf.estimator.ModeKeys.TRAIN)
        elif arguments.mode == "train":
            estimator.train(input_fn, steps=None, max_steps=arguments.max_steps, use_cs=use_cs)
        else:
            checkpoints = CheckpointReader.all_checkpoints(arguments.model_dir)
            assert all(CheckpointReader.is_a_checkpoint(path) for path in checkpoints)
            for path in checkpoints if arguments.mode == "eval_all" else checkpoints[-1:]:
                result = estimator.evaluate(input_fn, steps=None, checkpoint_path=path, use_cs=use_cs)
                print("RESULT", result["global_step"], sorted(result))
    print("DONE")


if __name__ == "__main__":
    main()
