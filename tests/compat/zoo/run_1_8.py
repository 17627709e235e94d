"""run.py of release 1.8: `python run.py {CPU,CSX {pipeline,weight_streaming}} ...`, without a launcher."""

import argparse
import os

import tensorflow as tf

try:
    from cerebras_appliance.environment import appliance_environ
except ImportError:
    pass

from tests.compat.zoo import data, run_utils
from tests.compat.zoo.models import model_fn_for
from tests.compat.zoo.wrappers_1_8 import (
    CSOFT_PACKAGE,
    CerebrasEstimator,
    CSEstimatorSpec,
    CSRunConfig,
    cs1_disable_summaries,
    cs1_enable_summaries,
)

model_fn = model_fn_for(CSEstimatorSpec)


def debug_args(params, path):
    from cerebras_appliance.pb.stack.full_pb2 import FullConfig
    from cerebras_appliance.pb.workflow.appliance.common.common_config_pb2 import DebugArgs
    from cerebras_appliance.run_utils import get_debug_args
    from google.protobuf import json_format

    made = get_debug_args(path) if path else DebugArgs()
    config = FullConfig()
    config.matching.kernel.inc_pwt_estimate = True
    if params["runconfig"]["multireplica"]:
        config.target_num_replicas = -1
    text = json_format.MessageToJson(config, including_default_value_fields=False, preserving_proto_field_name=True)
    made.debug_crd.pipeline_options.full_config = text
    made.debug_ini.frozen_content = "a: 1"
    made.debug_mgr.clean_pod_policy = DebugArgs.DebugMGR.CleanPodPolicy.NONE
    made.debug_mgr.scheduler_hints["allow-systems"] = "system0"
    for task in ("coordinator", "chief", "worker", "activation", "command", "weight", "broadcastreduce"):
        made.debug_mgr.task_spec_hints[task].container_image = "image"
    return made


def make_config(params, strategy):
    from cerebras_appliance.CSConfig import CSConfig
    from cerebras_appliance.pb.workflow.appliance.common.common_config_pb2 import ExecutionStrategy

    runconfig = params["runconfig"]
    kinds = {
        "pipeline": ExecutionStrategy.ES_PIPELINE,
        "weight_streaming": ExecutionStrategy.ES_WEIGHT_STREAMING,
        None: None,
    }
    cs_config = CSConfig(
        num_csx=runconfig["num_csx"] or 1,
        max_wgt_servers=runconfig["num_wgt_servers"],
        max_act_per_csx=runconfig["num_act_servers"],
        mgmt_address=runconfig["mgmt_address"],
        mgmt_namespace=None,
        credentials_path=runconfig["credentials_path"],
        debug_args=debug_args(params, runconfig["debug_args_path"]),
        mount_dirs=runconfig["mount_dirs"],
        python_paths=runconfig["python_paths"],
        transfer_processes=None,
        num_workers_per_csx=runconfig["num_workers_per_csx"],
        execution_strategy=kinds[strategy],
        job_labels=runconfig["job_labels"],
        job_time_sec=runconfig["job_time_sec"],
        disable_version_check=runconfig["disable_version_check"],
    )
    return CSRunConfig(cs_config=cs_config, **run_utils.run_config_kwargs(runconfig))


def add_arguments(parser):
    parser.add_argument("-p", "--params", required=True, help="name of the model")
    parser.add_argument("-d", "--data_dir", required=True)
    parser.add_argument("-m", "--mode", required=True, choices=["train", "eval", "eval_all", "train_and_eval"])
    parser.add_argument("-o", "--model_dir", default=os.path.join(os.getcwd(), "model_dir"))
    parser.add_argument("--checkpoint_path", default=None)
    parser.add_argument("--max_steps", type=int, default=None)
    parser.add_argument("--eval_steps", type=int, default=None)
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--set", action="append")


def parse():
    parser = argparse.ArgumentParser()
    targets = parser.add_subparsers(dest="target", required=True)
    add_arguments(targets.add_parser("CPU"))
    strategies = targets.add_parser("CSX").add_subparsers(dest="strategy", required=True)
    for name in ("pipeline", "weight_streaming"):
        one = strategies.add_parser(name)
        add_arguments(one)
        group = one.add_mutually_exclusive_group()
        group.add_argument("--compile_only", action="store_true", default=None)
        group.add_argument("--validate_only", action="store_true", default=None)
        one.add_argument("--num_workers_per_csx", type=int)
        one.add_argument("-c", "--compile_dir")
        for text in ("--debug_args_path", "--credentials_path", "--mgmt_address"):
            one.add_argument(text)
        for text in ("--job_labels", "--mount_dirs", "--python_paths"):
            one.add_argument(text, nargs="+")
        one.add_argument("--job_time_sec", type=int)
        one.add_argument("--disable_version_check", action="store_true", default=None)
        one.add_argument("--multireplica", action="store_true", default=None)
        for text in ("--num_csx", "--num_wgt_servers", "--num_act_servers"):
            one.add_argument(text, type=int)
    return parser.parse_args()


KEYS = (
    *("compile_only", "validate_only", "num_workers_per_csx", "compile_dir", "debug_args_path", "credentials_path"),
    *("mgmt_address", "job_labels", "mount_dirs", "python_paths", "job_time_sec", "disable_version_check"),
    *("multireplica", "num_csx", "num_wgt_servers", "num_act_servers"),
)


def main():
    arguments = parse()
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.INFO)
    params = run_utils.default_params(arguments.params, arguments.data_dir)
    runconfig = params["runconfig"]
    runconfig.update(dict.fromkeys([*KEYS, "use_cs_grad_accum", "steps", "max_steps", "eval_steps"]))
    params["model"]["precision_opt_level"] = 1
    run_utils.override(params, arguments.set)
    given = vars(arguments)
    runconfig.update({key: given[key] for key in given if key not in ("set", "params", "data_dir")})
    strategy = given.get("strategy")
    model_dir, mode = runconfig["model_dir"], runconfig["mode"]
    runconfig["on_cs"] = arguments.target == "CSX"
    if arguments.params in ("gpt2", "gptj") and strategy != "pipeline":
        runconfig["metrics"] = "eval_metric_ops"
    run_utils.save_params(params, model_dir)
    config = make_config(params, strategy)
    use_cs = arguments.target == "CSX"
    wrapped = cs1_enable_summaries if arguments.params == "fc_mnist" else cs1_disable_summaries
    with wrapped():
        est = CerebrasEstimator(
            model_fn=model_fn,
            model_dir=model_dir,
            compile_dir=runconfig["compile_dir"],
            config=config,
            params=params,
            warm_start_from=arguments.checkpoint_path if mode == "train" else None,
        )
        if runconfig["compile_only"] or runconfig["validate_only"]:
            evaluating = mode == "eval"
            est.compile(
                data.eval_input_fn if evaluating else data.train_input_fn,
                validate_only=runconfig["validate_only"],
                mode=tf.estimator.ModeKeys.EVAL if evaluating else tf.estimator.ModeKeys.TRAIN,
            )
        elif mode == "train":
            est.train(data.train_input_fn, steps=runconfig["steps"], max_steps=runconfig["max_steps"], use_cs=use_cs)
        elif mode == "train_and_eval":
            runconfig["mode"] = "train"
            est.train(data.train_input_fn, steps=runconfig["steps"], max_steps=runconfig["max_steps"], use_cs=use_cs)
            runconfig["mode"] = "eval"
            result = est.evaluate(data.eval_input_fn, steps=runconfig["eval_steps"], use_cs=use_cs)
            print("RESULT", int(result["global_step"]), sorted(result))
        elif mode == "eval":
            result = est.evaluate(
                data.eval_input_fn,
                checkpoint_path=arguments.checkpoint_path,
                steps=runconfig["eval_steps"],
                use_cs=use_cs,
            )
            print("RESULT", int(result["global_step"]), sorted(result))
        else:
            from cerebras_tensorflow.saver.checkpoint_reader import CheckpointReader

            paths = CheckpointReader.all_checkpoints(model_dir)
            if not paths:
                raise ValueError(f"model_dir {model_dir} does not contain any checkpoints.")
            for path in paths:
                if not CheckpointReader.is_a_checkpoint(path):
                    tf.compat.v1.logging.warning("Skipping eval for this checkpoint.")
                    continue
                result = est.evaluate(data.eval_input_fn, checkpoint_path=path, steps=None, use_cs=use_cs)
                print("RESULT", int(result["global_step"]), sorted(result))
    print("DONE", CSOFT_PACKAGE)


if __name__ == "__main__":
    main()
