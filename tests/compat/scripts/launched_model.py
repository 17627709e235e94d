"""Shared by the scripts of this folder: the flags, the estimator and the modes of run.py in release 1.6."""

import argparse

import tensorflow as tf

try:
    import tfwse  # noqa: F401 - importable in weight streaming only
    from cerebras.tf.ws.cs_estimator_ws import CerebrasEstimator

    WS = True
except ImportError:
    from cerebras.tf.cs_estimator import CerebrasEstimator

    WS = False
from cerebras.tf.run_config import CSRunConfig
from cerebras.tf.summary import cs1_enable_summaries


def main(model_fn, train_fn, eval_fn, params, predict_fn=None, exporter=None):
    p = argparse.ArgumentParser()
    p.add_argument("-m", "--mode", default="train")
    p.add_argument("-o", "--model_dir", default="model_dir")
    p.add_argument("--max_steps", type=int, default=4)
    p.add_argument("--eval_steps", type=int, default=2)
    p.add_argument("--compile_only", action="store_true")
    p.add_argument("--validate_only", action="store_true")
    p.add_argument("--policy", default="float32")
    p.add_argument("--warm")
    p.add_argument("--warm_re", default=".*")
    a = p.parse_args()
    tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.INFO)
    cfg = CSRunConfig(
        cs_ip=None,
        stack_params={"ir_mode": "mlir-cirh"},
        save_checkpoints_steps=2,
        log_step_count_steps=1,
        save_summary_steps=1,
        keep_checkpoint_max=0,
    )
    ws = tf.estimator.WarmStartSettings(a.warm, vars_to_warm_start=[a.warm_re]) if a.warm else None
    with cs1_enable_summaries():
        est = CerebrasEstimator(
            model_fn, model_dir=a.model_dir, config=cfg, params={**params, "policy": a.policy}, warm_start_from=ws
        )
        if a.compile_only or a.validate_only:
            est.compile(
                train_fn if a.mode == "train" else eval_fn,
                validate_only=a.validate_only,
                mode=tf.estimator.ModeKeys.TRAIN if a.mode == "train" else tf.estimator.ModeKeys.EVAL,
            )
        elif a.mode == "train":
            est.train(train_fn, max_steps=a.max_steps, use_cs=True)
        elif a.mode == "eval":
            r = est.evaluate(eval_fn, steps=a.eval_steps)
            print("RESULT", {k: float(v) for k, v in r.items()})
        elif a.mode == "eval_all":
            for path in tf.train.get_checkpoint_state(a.model_dir).all_model_checkpoint_paths:
                r = est.evaluate(eval_fn, steps=a.eval_steps, checkpoint_path=path, name="all")
                print("RESULT", {k: float(v) for k, v in r.items()})
        elif a.mode == "predict":
            for n, row in enumerate(est.predict(predict_fn, num_samples=3)):
                print("ROW", n, {k: v.shape for k, v in row.items()} if isinstance(row, dict) else row.shape)
        elif a.mode == "train_and_eval":
            r = tf.estimator.train_and_evaluate(
                est,
                tf.estimator.TrainSpec(train_fn, max_steps=a.max_steps),
                tf.estimator.EvalSpec(eval_fn, steps=a.eval_steps, throttle_secs=0, exporters=exporter),
            )
            print("RESULT", r)
