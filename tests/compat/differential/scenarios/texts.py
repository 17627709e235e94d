"""Texts of errors: what a program that tests for a message of TensorFlow 2.15 sees. Ours may say more after it."""

import json
import os
import re

import tensorflow as tf
from common import once, v1

est = tf.estimator


def _counting(mode, predictions=None, **changes):
    """Return a spec whose step only counts."""
    op = v1.train.get_global_step().assign_add(1)
    return est.EstimatorSpec(mode, predictions or {"p": tf.ones([4])}, tf.constant(1.0), op, **changes)


def _text(function):
    """Return the text of the exception that a call raises."""
    try:
        with tf.Graph().as_default():
            function()
    except Exception as error:  # noqa: BLE001 - any error of a call is its outcome
        return {"text": re.sub(" at 0x[0-9a-f]+", "", str(error)).split(" Original error:")[0]}
    return "no error"


def run_configs(run):
    """Settings out of range, in the constructor and in replace."""
    run.ignore_files()
    bad = {
        "model_dir": "",
        "save_summary_steps": -1,
        "save_checkpoints_steps": -1,
        "save_checkpoints_secs": -1,
        "keep_checkpoint_max": -1,
        "keep_checkpoint_every_n_hours": -1,
        "log_step_count_steps": 0,
        "session_config": {},
        "tf_random_seed": 1.5,
        "device_fn": "x",
        "protocol": "abc",
        "session_creation_timeout_secs": -1,
        "experimental_max_worker_delay_secs": "x",
    }
    made = {name: _text(lambda name=name, value=value: est.RunConfig(**{name: value})) for name, value in bad.items()}
    config = est.RunConfig()
    changed = {
        name: _text(lambda name=name, value=value: config.replace(**{name: value})) for name, value in bad.items()
    }
    is_property = {name: isinstance(getattr(est.RunConfig, name), property) for name in bad}
    return [made, changed, is_property]


def clusters(run):
    """Tasks that a cluster lacks."""
    run.ignore_files()
    jobs = {"chief": ["host0:0"], "ps": ["host1:1"], "worker": ["host2:2", "host3:3"]}
    result = {}
    for kind, index in (("Worker", 0), ("worker", 2), ("worker", -1), ("chief", 1)):
        os.environ["TF_CONFIG"] = json.dumps({"cluster": jobs, "task": {"type": kind, "index": index}})
        result[f"{kind} {index}"] = _text(est.RunConfig)
    return result


def specs(run):
    """Arguments of EstimatorSpec, TrainSpec, EvalSpec and BestExporter."""
    run.ignore_files()
    other = tf.Graph()
    with other.as_default():
        tensor = tf.constant(1.0)

    def spec(**changes):
        return est.EstimatorSpec("eval", **{"loss": tf.constant(1.0), **changes})

    def exporter(**changes):
        return est.BestExporter("best", once, **changes)

    return {
        "loss of another graph": _text(lambda: spec(loss=tensor)),
        "predictions of another graph": _text(lambda: spec(predictions={"a": tensor})),
        "metrics of another graph": _text(lambda: spec(eval_metric_ops={"a": (tensor, tensor)})),
        "hooks": _text(lambda: spec(evaluation_hooks=["x"])),
        "listeners": _text(lambda: est.TrainSpec(once, saving_listeners=["x"])),
        "exporters": _text(lambda: est.EvalSpec(once, exporters=[exporter(), exporter()])),
        "exports_to_keep": _text(lambda: exporter(exports_to_keep=0)),
        "compare_fn": _text(lambda: exporter(compare_fn=lambda best_eval_result, current_eval_result, x: True)),
        "no compare_fn": _text(lambda: exporter(compare_fn=lambda best_eval_result: True)),
        "receiver": _text(lambda: est.export.ServingInputReceiver({"f": tf.constant(1)}, {"r": [1]})),
        "label": _text(lambda: est.export.ServingInputReceiver({1.5: tf.constant(1)}, {"r": tf.constant(1)})),
    }


def estimators(run):
    """Calls of an Estimator with wrong arguments, checkpoints or models."""
    run.ignore_files()

    def model(features, labels, mode):
        return _counting(mode, {"p": v1.get_variable("p", [2], initializer=v1.zeros_initializer())})

    def with_metric(features, labels, mode):
        return _counting(mode, eval_metric_ops={"global_step": (tf.constant(1), tf.no_op())})

    def other(features, labels, mode):
        return _counting(mode, {"q": v1.get_variable("q", [2], initializer=v1.zeros_initializer())})

    estimator = est.Estimator(model, run.path("model"))
    estimator.train(once, steps=1)
    nothing = est.Estimator(lambda features: None, run.path("nothing"))
    return {
        "steps": _text(lambda: estimator.train(once, steps=0)),
        "listeners": _text(lambda: estimator.train(once, steps=1, saving_listeners=["x"])),
        "keys": _text(lambda: list(estimator.predict(once, predict_keys=["z"]))),
        "metric": _text(lambda: est.Estimator(with_metric, run.path("model")).evaluate(once, steps=1)),
        "no spec": _text(lambda: nothing.train(once, steps=1)),
        "no checkpoint": _text(lambda: estimator.evaluate(once, steps=1, checkpoint_path=run.path("none"))),
        "untrained": _text(lambda: nothing.get_variable_names()),
        "config": _text(lambda: est.Estimator(None, config="x")),
        "other model": _text(lambda: est.Estimator(other, run.path("model")).evaluate(once, steps=1)),
    }


def members(run):
    """What a subclass may replace, what may be called, and what model_fn and input_fn see."""
    run.ignore_files()
    seen = {}

    def model(features, labels, mode, config):
        seen["session_config"] = str(config.session_config)
        return _counting(mode)

    def with_words(**words):
        seen["words"] = sorted(words)
        return once()

    def subclass(name):
        kind = type("Mine", (est.Estimator,), {name: lambda self: None})
        return _text(lambda: kind(model, run.path("model")))

    names = "predict _call_input_fn _train_model _create_and_assert_global_step latest_checkpoint own _own".split()
    result = {name: type(subclass(name)).__name__ for name in names}
    kind = type("Base", (est.Estimator,), {"train": lambda self: None})
    result["of a base class"] = _text(lambda: type("Mine", (kind,), {})(model, run.path("model")))
    result["model_fn"] = _text(lambda: est.Estimator(5))
    estimator = est.Estimator(model, run.path("model"))
    result["input_fn"] = _text(lambda: estimator.train(None, steps=1))
    result["name"] = estimator.model_fn.__name__
    estimator.train(with_words, steps=1)
    return [result, seen, str(estimator.config.session_config)]
