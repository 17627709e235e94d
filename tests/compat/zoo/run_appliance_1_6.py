"""run-appliance.py of releases 1.6 and 1.7: the appliance's estimator and TensorFlow's spec with a host_call."""

import argparse

import tensorflow as tf
from cerebras_appliance.cs_run_config import CSRunConfig
from cerebras_appliance.CSConfig import CSConfig
from cerebras_appliance.pb.client.common_config_pb2 import DebugArgs, ExecutionStrategy
from cerebras_tensorflow.cs_estimator_app import CerebrasAppEstimator
from tensorflow_estimator.python.estimator.model_fn import EstimatorSpec

from tests.compat.zoo import data, run_utils
from tests.compat.zoo.models import model_fn_for


class CSEstimatorSpec(EstimatorSpec):
    def __new__(cls, mode, host_call=None, **kwargs):
        spec = super().__new__(cls, mode, **kwargs)
        spec.host_call = host_call
        return spec


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--credentials_path", required=True)
    parser.add_argument("--mgmt_address", default="cluster-server.cerebras.com:443")
    parser.add_argument("--mode", choices=["train", "eval"], required=True)
    parser.add_argument("--params", required=True)
    parser.add_argument("--num_csx", type=int, default=1)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--max_steps", type=int)
    parser.add_argument("--num_wgt_servers", type=int)
    parser.add_argument("--compile_only", action="store_true")
    parser.add_argument("--validate_only", action="store_true")
    parser.add_argument("--model_dir")
    parser.add_argument("--mount_dirs", nargs="+")
    parser.add_argument("--python_paths", nargs="+")
    parser.add_argument("--compile_dir")
    parser.add_argument("--checkpoint_path")
    parser.add_argument("--data_mount_path", required=True)
    parser.add_argument("--modelzoo_mount_path", required=True)
    parser.add_argument("--execution_strategy")
    arguments = parser.parse_args()
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.INFO)
    params = run_utils.default_params(arguments.params, arguments.data_mount_path)
    params["runconfig"].update(mode=arguments.mode, model_dir=arguments.model_dir, on_cs=True)
    kwargs = {"mount_dirs": arguments.mount_dirs, "python_paths": arguments.python_paths}
    if arguments.execution_strategy:  # 1.7
        kwargs["execution_strategy"] = ExecutionStrategy.Value(arguments.execution_strategy)
    cs_config = CSConfig(
        num_csx=arguments.num_csx,
        max_wgt_servers=arguments.num_wgt_servers,
        mgmt_address=arguments.mgmt_address,
        credentials_path=arguments.credentials_path,
        debug_args=DebugArgs(debug_ini=DebugArgs.DebugINI(frozen_content="x: 1")),
        **kwargs,
    )
    est = CerebrasAppEstimator(
        model_fn_for(CSEstimatorSpec),
        params=params,
        config=CSRunConfig(cs_config=cs_config, **run_utils.run_config_kwargs(params["runconfig"])),
        model_dir=arguments.model_dir,
        compile_dir=arguments.compile_dir,
        warm_start_from=arguments.checkpoint_path,
    )
    if arguments.compile_only or arguments.validate_only:
        est.compile(data.train_input_fn, validate_only=arguments.validate_only, mode=tf.estimator.ModeKeys.TRAIN)
    elif arguments.mode == "train":
        est.train(data.train_input_fn, steps=arguments.steps, max_steps=arguments.max_steps, use_cs=True)
    else:
        result = est.evaluate(data.eval_input_fn, steps=2, checkpoint_path=arguments.checkpoint_path, use_cs=True)
        print("RESULT", int(result["global_step"]), sorted(result))
    print("DONE")


if __name__ == "__main__":
    main()
