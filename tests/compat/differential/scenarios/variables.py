"""Variables and their names in checkpoints: partitions, slots, tf.cond, warm starts; and the forms of settings."""

import os

import numpy as np
import tensorflow as tf
from common import forever, linear, make, once, serving, v1, weights

Spec = tf.estimator.EstimatorSpec
WarmStart = tf.estimator.WarmStartSettings


def _partitioned(parts, axis=0):
    def model_fn(features, labels, mode, params):
        partitioner = v1.fixed_size_partitioner(parts, axis)
        w = v1.get_variable("w", [3, 2], initializer=v1.ones_initializer(), partitioner=partitioner)
        with v1.variable_scope("scope", partitioner=partitioner):
            b = v1.get_variable("b", [4], initializer=v1.zeros_initializer())
        predictions = tf.reduce_sum(tf.matmul(features["x"], tf.convert_to_tensor(w)), 1, keepdims=True)
        predictions += tf.reduce_sum(tf.convert_to_tensor(b))
        if mode == "infer":
            return Spec(mode, {"p": predictions})
        loss = tf.reduce_mean(tf.square(predictions - labels))
        return Spec(mode, loss=loss, train_op=v1.train.AdamOptimizer(0.1).minimize(loss, v1.train.get_global_step()))

    return model_fn


def partitioned_variables(run):
    run.ignore_files()
    for parts, axis in ((2, 0), (3, 0), (1, 0)):
        name = f"parts {parts}"
        estimator = make(run, _partitioned(parts, axis), name.replace(" ", "_")).train(forever, steps=2)
        run.note(f"{name} names", estimator.get_variable_names())
        estimator.train(forever, steps=2)
        run.note(name, weights(estimator))
        run.note(f"{name} evaluated", estimator.evaluate(once))
        run.note(f"{name} predicted", [row["p"] for row in estimator.predict(once)])
        path = estimator.export_saved_model(run.path("export", name), serving)
        reader = tf.train.load_checkpoint(os.path.join(path.decode(), "variables", "variables"))
        run.note(f"{name} exported", sorted(reader.get_variable_to_shape_map()))
        warm = tf.estimator.Estimator(
            _partitioned(parts, axis), run.path(f"w{parts}"), warm_start_from=estimator.latest_checkpoint()
        )
        run.note(f"{name} warm", weights(warm.train(forever, steps=1)))


def embeddings_in_parts(run):
    run.ignore_files()

    def model_fn(features, labels, mode, params):
        partitioner = v1.fixed_size_partitioner(2)
        table = v1.get_variable("table", [9, 2], initializer=v1.ones_initializer(), partitioner=partitioner)
        rows = tf.cast(tf.abs(features["x"]) * 8, tf.int64)
        values = v1.nn.embedding_lookup(table, rows)
        predictions = tf.reduce_sum(values, [1, 2])[:, None]
        loss = tf.reduce_mean(tf.square(predictions - labels)) if labels is not None else None
        train_op = None
        if mode == "train":
            train_op = v1.train.AdagradOptimizer(0.1).minimize(loss, v1.train.get_global_step())
        return Spec(mode, {"p": predictions}, loss, train_op)

    estimator = make(run, model_fn).train(forever, steps=3)
    run.note("weights", weights(estimator))
    run.note("evaluated", estimator.evaluate(once))


def other_partitions_of_a_checkpoint(run):
    run.ignore_files()
    make(run, _partitioned(2)).train(forever, steps=2)
    return weights(make(run, _partitioned(3)).train(forever, steps=2))


def slots_under_a_condition(run):
    run.ignore_files()

    def model_fn(features, labels, mode, params):
        spec = linear(features, labels, "eval", params)
        optimizer = getattr(v1.train, params["kind"])(*params["args"])
        gradients = optimizer.compute_gradients(spec.loss, v1.trainable_variables())
        finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(gradient)) for gradient, _ in gradients])
        scale = v1.get_variable("loss_scale", [], initializer=v1.constant_initializer(8.0), trainable=False)
        step = v1.train.get_global_step()
        train_op = tf.cond(
            finite,
            lambda: tf.group(optimizer.apply_gradients(gradients, step), scale.assign(scale * 2)),
            lambda: tf.group(scale.assign(scale / 2)),
        )
        return Spec(mode, loss=spec.loss, train_op=train_op)

    kinds = {
        "AdamOptimizer": (0.1,),
        "MomentumOptimizer": (0.1, 0.9),
        "AdagradOptimizer": (0.1,),
        "RMSPropOptimizer": (0.1,),
        "FtrlOptimizer": (0.1,),
    }
    for kind, args in kinds.items():
        estimator = make(run, model_fn, kind, {"kind": kind, "args": args}).train(forever, steps=2)
        run.note(kind, weights(estimator.train(forever, steps=2)))


def warm_starts(run):
    run.ignore_files()
    first = make(run, name="first").train(forever, steps=3)
    path = first.export_saved_model(run.path("export"), serving)
    forms = {
        "path": first.latest_checkpoint(),
        "folder": first.model_dir,
        "saved model": path.decode(),
        "bytes": path,
        "settings": WarmStart(first.model_dir),
        "one": WarmStart(first.model_dir, "w"),
        "list": WarmStart(first.model_dir, ["w:0"]),
        "all": WarmStart(first.model_dir, [".*"]),
        "none": WarmStart(first.model_dir, None),
        "renamed": WarmStart(first.model_dir, "b", None, {"b": "b"}),
        "unknown": WarmStart(first.model_dir, "b", None, {"c": "b"}),
        "no checkpoint": run.path("nothing"),
        "number": 5,
    }
    for name, form in forms.items():
        folder = run.path(name.replace(" ", "_"))
        run.attempt(
            name,
            lambda form=form, at=folder: weights(
                tf.estimator.Estimator(linear, at, warm_start_from=form).train(forever, steps=1)
            ),
        )
    warm = tf.estimator.Estimator(linear, run.path("eval"), warm_start_from=first.model_dir)
    run.attempt("evaluated", lambda: warm.evaluate(once))
    run.attempt("predicted", lambda: [row["p"] for row in warm.predict(once)])
    run.attempt("exported", lambda: bool(warm.export_saved_model(run.path("warm_export"), serving)))


def warm_start_settings(run):
    settings = WarmStart("path")
    run.note("fields", list(settings._fields))
    run.note("values", list(settings))
    run.note("replaced", list(settings._replace(vars_to_warm_start="a")))
    run.note("tuple", isinstance(settings, tuple))
    run.note("equal", settings == WarmStart("path"))
    run.attempt("none", WarmStart, None)
    run.attempt("empty", WarmStart, "")
    run.attempt("position", lambda: list(WarmStart("a", "b", {"c": "d"}, {"e": "f"})))


def run_configs(run):
    kind = tf.estimator.RunConfig
    config = kind("folder", 3, 4, 5, None, None, 6, 7, 8)
    names = [name for name in dir(config) if not name.startswith("_")]
    run.note("names", names)
    run.note("properties", {name: isinstance(getattr(kind, name, None), property) for name in names})
    shown = lambda one: {
        name: getattr(one, name)
        for name in names
        if isinstance(getattr(one, name), (int, str, type(None))) and name != "session_config"
    }
    run.note("values", shown(config))
    run.note("default", shown(kind()))
    run.note("replaced", shown(config.replace(model_dir="b", save_checkpoints_secs=9)))
    run.note(
        "position",
        shown(kind(None, None, 100, 600, None, None, 5, 1e4, 100, None, None, "grpc", None, None, 3, 9, False)),
    )
    forms = {
        "unknown": lambda: config.replace(other=1),
        "both": lambda: config.replace(save_checkpoints_secs=1, save_checkpoints_steps=1),
        "constructor both": lambda: kind(save_checkpoints_secs=1, save_checkpoints_steps=1),
        "none both": lambda: shown(kind(save_checkpoints_secs=None, save_checkpoints_steps=None))[
            "save_checkpoints_secs"
        ],
        "replace none": lambda: shown(config.replace(save_checkpoints_steps=None))["save_checkpoints_secs"],
        "empty folder": lambda: kind(model_dir=""),
        "seed of text": lambda: kind(tf_random_seed="a"),
        "seed of float": lambda: kind(tf_random_seed=1.0),
        "negative": lambda: kind(save_summary_steps=-1),
        "negative keep": lambda: kind(keep_checkpoint_max=-1),
        "zero log": lambda: kind(log_step_count_steps=0),
        "zero hours": lambda: kind(keep_checkpoint_every_n_hours=0),
        "session config": lambda: kind(session_config=5),
        "protocol": lambda: kind(protocol="other"),
        "device fn": lambda: kind(device_fn=lambda: 1),
        "device fn op": lambda: kind(device_fn=lambda op: "/cpu:0").device_fn is not None,
        "timeout": lambda: kind(session_creation_timeout_secs=0),
        "delay": lambda: kind(experimental_max_worker_delay_secs="a"),
        "tpu": lambda: config.replace(cluster=1),
        "set": lambda: setattr(config, "model_dir", "x"),
    }
    for name, form in forms.items():
        run.attempt(name, lambda form=form: form() is not None)


def numpy_types_and_steps(run):
    estimator = make(run, save_checkpoints_steps=np.int64(2))
    estimator.train(forever, steps=np.int64(3))
    run.note("evaluated", estimator.evaluate(once, steps=np.int32(1)))
    run.note("types", {name: type(value).__name__ for name, value in estimator.evaluate(once).items()})
    run.attempt("steps of float", lambda: bool(estimator.train(forever, steps=2.0)))
    run.attempt("steps of text", lambda: bool(estimator.train(forever, steps="2")))
