"""RunConfig under TF_CONFIG, and roles of train_and_evaluate that need no other process."""

import json
import os

import tensorflow as tf
from common import forever, linear, once, v1, weights

CLUSTER = {"chief": ["a:1"], "worker": ["b:2", "c:3"], "ps": ["d:4", "e:5"]}
FIELDS = (
    "task_type",
    "task_id",
    "is_chief",
    "master",
    "evaluation_master",
    "num_ps_replicas",
    "num_worker_replicas",
    "global_id_in_cluster",
    "service",
    "model_dir",
)


def _config(tf_config, **settings):
    os.environ["TF_CONFIG"] = json.dumps(tf_config)
    try:
        return tf.estimator.RunConfig(**settings)
    finally:
        del os.environ["TF_CONFIG"]


def _show(config):
    shown = {name: getattr(config, name) for name in FIELDS}
    shown["cluster_spec"] = config.cluster_spec.as_dict()
    shown["session_config"] = str(config.session_config)
    return shown


def _task(kind, index, cluster=None, **other):
    return {"cluster": cluster or CLUSTER, "task": {"type": kind, "index": index}, **other}


def roles(run):
    master = {"master": ["a:1"], "worker": ["b:2"], "ps": ["c:3"]}
    named = {"chief": ["a:1"], "zebra": ["b:2"], "worker": ["c:3"], "ant": ["d:4", "e:5"], "ps": ["f:6"]}
    tasks = {
        "chief": _task("chief", 0),
        "first worker": _task("worker", 0),
        "second worker": _task("worker", 1),
        "index as text": _task("worker", "1"),
        "server": _task("ps", 1),
        "evaluator": _task("evaluator", 0),
        "third evaluator": _task("evaluator", 2),
        "master": _task("master", 0, master),
        "worker of a master": _task("worker", 0, master),
        "server of a master": _task("ps", 0, master),
        "alone": _task("chief", 0, {"chief": ["a:1"]}),
        "master alone": _task("master", 0, {"master": ["a:1"]}),
        "two chiefless jobs": _task("worker", 0, {"chief": ["a:1"], "worker": ["b:2"]}),
        "other jobs": _task("ant", 1, named),
        "zebra": _task("zebra", 0, named),
        "evaluator in the cluster": _task("evaluator", 0, {**CLUSTER, "evaluator": ["f:6"]}),
        "worker beside an evaluator": _task("worker", 0, {**CLUSTER, "evaluator": ["f:6"]}),
    }
    for name, task in tasks.items():
        run.attempt(name, lambda task=task: _show(_config(task)))


def targets(run):
    other = {"session_master": "grpc://h:1", "eval_session_master": "grpc://i:2"}
    for name, task in {
        "local": {},
        "local worker": {"task": {"type": "worker"}},
        "chief": _task("chief", 0),
        "alone": _task("chief", 0, {"chief": ["a:1"]}),
        "evaluator": _task("evaluator", 0),
        "ps": _task("ps", 0),
    }.items():
        run.attempt(name, lambda task=task: _show(_config({**task, **other})))


def extras(run):
    run.attempt("service", lambda: _show(_config(_task("chief", 0, service={"a": 1}))))
    run.attempt("no service", lambda: _show(_config({"service": [1]})))
    run.attempt("model_dir", lambda: _show(_config(_task("chief", 0, model_dir="here"))))
    run.attempt("same model_dir", lambda: _show(_config({"model_dir": "here"}, model_dir="here")))
    run.attempt("other model_dir", lambda: _show(_config({"model_dir": "here"}, model_dir="there")))
    run.attempt("empty model_dir", lambda: _show(_config({"model_dir": ""})))
    run.attempt("unknown key", lambda: _show(_config({"environment": "cloud", "job": {"a": 1}})))


def malformed(run):
    for name, task in {
        "no task": {"cluster": CLUSTER},
        "no type": {"cluster": CLUSTER, "task": {"index": 0}},
        "no index": {"cluster": CLUSTER, "task": {"type": "worker"}},
        "negative": _task("worker", -1),
        "beyond": _task("worker", 2),
        "index a word": _task("worker", "one"),
        "unknown": _task("other", 0),
        "no chief": _task("worker", 0, {"worker": ["a:1"]}),
        "two chiefs": _task("chief", 0, {"chief": ["a:1", "b:2"]}),
        "empty chief": _task("chief", 0, {"chief": [], "worker": ["a:1"]}),
        "chief and master": _task("chief", 0, {"chief": ["a:1"], "master": ["b:2"]}),
        "evaluator of a master": _task("evaluator", 0, {"master": ["a:1"]}),
        "address alone": _task("chief", 0, {"chief": "a:1"}),
        "address a number": _task("chief", 0, {"chief": [1]}),
        "cluster a list": {"cluster": ["a:1"], "task": {"type": "chief", "index": 0}},
        "local chief": {"task": {"type": "chief"}},
        "local second": {"task": {"type": "worker", "index": 1}},
        "local evaluator": {"task": {"type": "evaluator", "index": 0}},
    }.items():
        run.attempt(name, lambda task=task: _show(_config(task)))


def session_config_that_was_given(run):
    given = v1.ConfigProto(log_device_placement=True)
    run.attempt("given", lambda: _show(_config(_task("worker", 1), session_config=given)))
    run.attempt("replaced", lambda: _show(_config(_task("worker", 1)).replace(session_config=given)))
    run.attempt("kept", lambda: _show(_config(_task("worker", 1)).replace(model_dir="there")))


def what_a_model_sees(run):
    seen = []

    def model_fn(features, labels, mode, config):
        seen.append([config.is_chief, config.task_type, config.num_worker_replicas, config.master])
        return linear(features, labels, mode, {})

    config = _config(_task("chief", 0, {"chief": ["localhost:1"]}), tf_random_seed=1)
    estimator = tf.estimator.Estimator(model_fn, run.path("model"), config)
    result = tf.estimator.train_and_evaluate(
        estimator, tf.estimator.TrainSpec(forever, 4), tf.estimator.EvalSpec(once, throttle_secs=0)
    )
    run.note("result", result)
    run.note("weights", weights(estimator))
    return seen


def roles_of_train_and_evaluate(run):
    def go(kind, index, cluster):
        config = _config(_task(kind, index, cluster))
        estimator = tf.estimator.Estimator(linear, run.path(kind + str(index)), config, {})
        return tf.estimator.train_and_evaluate(
            estimator, tf.estimator.TrainSpec(forever, 2), tf.estimator.EvalSpec(once)
        )

    run.attempt("second evaluator", go, "evaluator", 1, CLUSTER)
    run.attempt("unknown job", go, "other", 0, {"chief": ["localhost:1"], "other": ["localhost:2"]})
    run.ignore_files()


def train_in_a_role_that_does_not(run):
    def go(kind):
        config = _config(_task(kind, 0))
        tf.estimator.Estimator(linear, run.path(kind), config, {}).train(forever, steps=1)

    run.attempt("ps", go, "ps")
    run.attempt("evaluator", go, "evaluator")
