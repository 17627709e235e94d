"""run.py of releases 1.6 and 1.7: `csrun_wse python run.py` (pipelined) or `csrun_wse python-ws run.py`."""

import argparse
import os
import sys

import numpy as np
import tensorflow as tf

from tests.compat.zoo import data, run_utils
from tests.compat.zoo.models import model_fn_for


def stack_params(params, mode):
    """Settings of the original's compiler; 1.6 imports their enums outside any try."""
    from cerebras.pb.common import cerebras_type_pb2 as cb_types
    from cerebras.pb.common.tri_state_pb2 import TS_DISABLED, TS_ENABLED
    from cerebras.pb.stack.autogen_pb2 import AP_ENABLED
    from cerebras.pb.stack.full_pb2 import FullConfig

    config = FullConfig()
    config.matching.kernel.use_legacy_vsl = params["model"].get("use_vsl", False)
    config.matching.kernel.inc_pwt_estimate = True
    config.matching.kernel.no_dcache_spill_splits = True
    config.matching.kernel.enable_pipelined_mlm_loss = True
    config.matching.kernel.numerics.layernorm_compute_dtype = cb_types.T_CB16
    config.matching.kernel.autogen_config.always_store_inputs = TS_ENABLED
    config.matching.kernel.autogen_config.enable_task_based_estimator = TS_ENABLED
    config.matching.kernel.autogen_config.try_strip_outer_dim = TS_ENABLED
    config.matching.autogen_policy = AP_ENABLED
    config.matching.add_pack_and_unpack.max_egress_per_pack = 1
    config.matching.match_lair.disabled_converters.append("AttentionCIRHConverter")
    config.matching.remove_meta_kernels.remove_reshape_meta = TS_ENABLED
    config.matching.optimize_graph.placement_prediction.max_fill_rate = -1
    config.placement.prep_recolor_kernels.wrap_pack_kernel = True
    config.placement.optimize_buses.deltat_relative_margin = 0.5
    config.placement.pathfinder.deltat_relative_margin = 1.0
    config.placement.pathfinder_inter_replica.fix_existing = TS_DISABLED
    config.placement.pathfinder_inter_replica.allow_infeasible_initial_state = TS_ENABLED
    if params["runconfig"]["multireplica"] and mode == "train":
        config.target_num_replicas = -1
    other = FullConfig()
    other.MergeFrom(config)
    return {"config": other, "ir_mode": "mlir-cirh"}


def cs_config(params):
    from cerebras.pb.tf.csconfig_pb2 import CSConfig

    return CSConfig(**params["csconfig"])


def main(release):
    model_fn = model_fn_for(release.CSEstimatorSpec)
    parser = argparse.ArgumentParser()
    parser.add_argument("-p", "--params", required=True, help="name of the model")
    parser.add_argument("-d", "--data_dir", required=True)
    parser.add_argument("-o", "--model_dir", default="model_dir")
    parser.add_argument("--cs_ip", default=None)
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--max_steps", type=int, default=None)
    parser.add_argument("--eval_steps", type=int, default=None)
    parser.add_argument(
        "-m", "--mode", required=True, choices=["train", "eval", "eval_all", "train_and_eval", "predict"]
    )
    parser.add_argument("--validate_only", action="store_true")
    parser.add_argument("--compile_only", action="store_true")
    parser.add_argument("--device", default=None)
    parser.add_argument("--checkpoint_path", default=None)
    parser.add_argument("--exclude", default=None)
    parser.add_argument("--multireplica", action="store_true")
    parser.add_argument("--summaries", action="store_true")
    parser.add_argument("--sparsifier", action="store_true")
    parser.add_argument("--set", action="append")
    arguments = parser.parse_args(sys.argv[1:])
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.INFO)

    params = run_utils.default_params(arguments.params, arguments.data_dir)
    run_utils.override(params, arguments.set)
    runconfig = params["runconfig"]
    given = vars(arguments)
    runconfig.update({key: given[key] for key in given if key not in ("set", "params", "data_dir")})
    if runconfig["cs_ip"] and "K8S_CS_IP" not in os.environ and ":" not in runconfig["cs_ip"]:
        runconfig["cs_ip"] += ":9000"
    if runconfig["eval_steps"] is not None and runconfig["eval_steps"] <= 0:
        runconfig["eval_steps"] = None
    run_utils.check_env(runconfig)
    model_dir, mode = runconfig["model_dir"], runconfig["mode"]
    run_utils.save_params(params, model_dir)
    if mode == "train":
        run_utils.update_input_checkpoint_steps(params, model_dir, release.GetWeights)
    if runconfig["multireplica"]:
        os.environ["CEREBRAS_CUSTOM_MONITORED_SESSION"] = "True"
    config = release.CSRunConfig(
        cs_ip=runconfig["cs_ip"],
        system_name=None,
        cs_config=cs_config(params),
        stack_params=stack_params(params, mode),
        **run_utils.run_config_kwargs(runconfig),
    )
    use_cs = run_utils.is_cs(runconfig)
    runconfig["on_cs"] = use_cs
    warm_start = (
        run_utils.warm_start_settings(arguments.checkpoint_path, arguments.exclude) if mode == "train" else None
    )
    with release.cs1_enable_summaries() if arguments.summaries else release.cs1_disable_summaries():
        est = release.CerebrasEstimator(
            model_fn=model_fn,
            model_dir=model_dir,
            compile_dir=None,
            config=config,
            params=params,
            warm_start_from=warm_start,
        )
        if runconfig["validate_only"] or runconfig["compile_only"]:
            eval_mode = mode in ("eval", "eval_all")
            input_fn = data.eval_input_fn if eval_mode else data.train_input_fn
            key = tf.estimator.ModeKeys.EVAL if eval_mode else tf.estimator.ModeKeys.TRAIN
            est.compile(input_fn, validate_only=runconfig["validate_only"], mode=key)
        elif mode == "train":
            kwargs = {}
            if arguments.sparsifier:

                class Sparsifier:
                    def apply_sparsity(self, step):
                        return False

                    def get_masked_weights(self, step, weights, sparse_val):
                        return weights

                    def get_num_sparsified_values(self, v_name, sparse_val):
                        return 0

                kwargs["sparsifier"] = Sparsifier()
            est.train(
                input_fn=data.train_input_fn,
                steps=arguments.steps,
                max_steps=arguments.max_steps,
                use_cs=use_cs,
                **kwargs,
            )
        elif mode == "eval":
            result = est.evaluate(
                input_fn=data.eval_input_fn,
                checkpoint_path=arguments.checkpoint_path,
                steps=runconfig["eval_steps"],
                use_cs=use_cs,
            )
            print("RESULT", int(result["global_step"]), sorted(result))
        elif mode == "eval_all":
            for path in tf.train.get_checkpoint_state(model_dir).all_model_checkpoint_paths:
                result = est.evaluate(data.eval_input_fn, checkpoint_path=path, steps=runconfig["eval_steps"])
                print("RESULT", int(result["global_step"]), sorted(result))
        elif mode == "train_and_eval":
            train_spec = tf.estimator.TrainSpec(input_fn=data.train_input_fn, max_steps=arguments.max_steps)
            eval_spec = tf.estimator.EvalSpec(
                input_fn=data.eval_input_fn,
                steps=runconfig["eval_steps"],
                throttle_secs=runconfig.get("throttle_secs", 0),
            )
            tf.estimator.train_and_evaluate(est, train_spec, eval_spec)
        elif mode == "predict":
            predictions = est.predict(
                input_fn=data.predict_input_fn,
                checkpoint_path=arguments.checkpoint_path,
                num_samples=10,
                use_cs=use_cs,
                yield_single_examples=True,
            )
            rows = list(predictions)
            os.makedirs(os.path.join(model_dir, "predict"), exist_ok=True)
            place = os.path.join(model_dir, "predict", f"predictions_{'cs' if use_cs else 'tf'}_{config.task_id}.npz")
            np.savez(place, rows)
            print("RESULT", len(rows), sorted(rows[0]) if isinstance(rows[0], dict) else np.shape(rows[0]))
    latest = tf.train.latest_checkpoint(model_dir)
    print("DONE", latest and os.path.basename(latest), release.is_weight_streaming)


if __name__ == "__main__":
    from tests.compat.zoo import wrappers_1_6

    main(wrappers_1_6)
