"""EstimatorSpec, ModeKeys and the metrics: what is taken, changed and refused."""

import tensorflow as tf
from common import X, Y, data, forever, linear, make, once, v1

Spec = tf.estimator.EstimatorSpec


def _show(spec):
    shown = {}
    for name, value in spec._asdict().items():
        if isinstance(value, dict):
            shown[name] = sorted(str(key) for key in value)
        elif isinstance(value, tf.Tensor):
            shown[name] = value.shape.as_list()
        else:
            shown[name] = value
    return shown


def _inside(function):
    with tf.Graph().as_default():
        return function()


def forms_that_are_taken(run):
    step = lambda: v1.assign_add(v1.train.get_or_create_global_step(), 1)
    forms = {
        "train": lambda: Spec("train", loss=tf.constant(1.0), train_op=tf.no_op()),
        "loss of one": lambda: Spec("train", loss=tf.constant([1.0]), train_op=tf.no_op()),
        "loss 1x1": lambda: Spec("train", loss=tf.constant([[1.0]]), train_op=tf.no_op()),
        "train op of tensor": lambda: Spec("train", loss=tf.constant(1.0), train_op=step()),
        "evaluate": lambda: Spec("eval", loss=tf.constant(1.0)),
        "predict": lambda: Spec("infer", predictions=tf.constant([1.0])),
        "predict dict": lambda: Spec("infer", predictions={"a": tf.constant([1.0])}),
        "hooks in a list": lambda: Spec("infer", tf.constant([1.0]), prediction_hooks=[v1.train.SessionRunHook()]),
        "other mode": lambda: Spec("other"),
        "empty predictions": lambda: Spec("eval", {}, tf.constant(1.0)),
        "metrics": lambda: Spec(
            "eval", loss=tf.constant(1.0), eval_metric_ops={"m": v1.metrics.mean(tf.constant(1.0))}
        ),
        "keras metric": lambda: Spec("eval", loss=tf.constant(1.0), eval_metric_ops={"m": _mean()}),
        "int key": lambda: Spec("eval", loss=tf.constant(1.0), eval_metric_ops={1: v1.metrics.mean(tf.constant(1.0))}),
        "metrics without update": lambda: Spec(
            "eval", loss=tf.constant(1.0), eval_metric_ops={"m": (tf.constant(1.0), tf.no_op())}
        ),
        "exports": lambda: Spec(
            "infer",
            {"a": tf.constant([1.0])},
            export_outputs={"e": tf.estimator.export.PredictOutput({"a": tf.constant([1.0])})},
        ),
        "loss of integers": lambda: Spec("train", loss=tf.constant(1), train_op=tf.no_op()),
        "scaffold": lambda: Spec("infer", tf.constant([1.0]), scaffold=v1.train.Scaffold()),
    }
    for name, form in forms.items():
        run.attempt(name, lambda form=form: _show(_inside(form)))


def sparse_predictions(run):
    run.attempt("infer", lambda: _show(_inside(lambda: Spec("infer", {"a": tf.sparse.from_dense([1.0])}))))
    run.attempt(
        "eval", lambda: _show(_inside(lambda: Spec("eval", {"a": tf.sparse.from_dense([1.0])}, tf.constant(1.0))))
    )


def _mean():
    metric = tf.keras.metrics.Mean()
    metric.update_state(tf.constant([1.0]))
    return metric


def forms_that_are_refused(run):
    loss = lambda: tf.constant(1.0)
    forms = {
        "train without loss": lambda: Spec("train", train_op=tf.no_op()),
        "train without op": lambda: Spec("train", loss=loss()),
        "evaluate without loss": lambda: Spec("eval"),
        "predict without predictions": lambda: Spec("infer"),
        "loss of two": lambda: Spec("train", loss=tf.constant([1.0, 2.0]), train_op=tf.no_op()),
        "loss a number": lambda: Spec("train", loss=1.0, train_op=tf.no_op()),
        "loss of text": lambda: Spec("eval", loss="a"),
        "train op a number": lambda: Spec("train", loss=loss(), train_op=1),
        "predictions a number": lambda: Spec("infer", 1.0),
        "predictions of numbers": lambda: Spec("infer", {"a": 1.0}),
        "metrics a tuple": lambda: Spec("eval", loss=loss(), eval_metric_ops=(loss(), loss())),
        "metric a tensor": lambda: Spec("eval", loss=loss(), eval_metric_ops={"m": loss()}),
        "metric of three": lambda: Spec("eval", loss=loss(), eval_metric_ops={"m": (loss(), loss(), loss())}),
        "metric value a number": lambda: Spec("eval", loss=loss(), eval_metric_ops={"m": (1.0, tf.no_op())}),
        "metric update a number": lambda: Spec("eval", loss=loss(), eval_metric_ops={"m": (loss(), 1.0)}),
        "metric of None": lambda: Spec("eval", loss=loss(), eval_metric_ops={"m": (loss(), None)}),
        "keras metric not called": lambda: Spec("eval", loss=loss(), eval_metric_ops={"m": tf.keras.metrics.Mean()}),
        "exports a tensor": lambda: Spec("infer", loss(), export_outputs=loss()),
        "exports of tensors": lambda: Spec("infer", loss(), export_outputs={"a": loss()}),
        "hooks not hooks": lambda: Spec("train", loss=loss(), train_op=tf.no_op(), training_hooks=[1]),
        "chief hooks": lambda: Spec("train", loss=loss(), train_op=tf.no_op(), training_chief_hooks=["a"]),
        "a hook alone": lambda: Spec("eval", loss=loss(), evaluation_hooks=v1.train.SessionRunHook()),
        "scaffold": lambda: Spec("infer", loss(), scaffold="a"),
        "two exports no default": lambda: Spec(
            "infer",
            loss(),
            export_outputs={
                "a": tf.estimator.export.PredictOutput(loss()),
                "b": tf.estimator.export.PredictOutput(loss()),
            },
        ),
    }
    for name, form in forms.items():
        run.attempt(name, lambda form=form: _show(_inside(form)))


def other_graphs(run):
    def build(field):
        with tf.Graph().as_default():
            other = tf.constant(1.0)
            operation = tf.no_op()
            metric = v1.metrics.mean(tf.constant(1.0))
        with tf.Graph().as_default():
            loss = tf.constant(1.0)
            words = {"mode": "train", "loss": loss, "train_op": tf.no_op()}
            words.update(
                {
                    "loss": {"loss": other},
                    "train_op": {"train_op": operation},
                    "predictions": {"predictions": other},
                    "prediction": {"predictions": {"a": other}},
                    "metric": {"eval_metric_ops": {"m": metric}},
                    "update": {"eval_metric_ops": {"m": (loss, metric[1])}},
                }[field]
            )
            return _show(Spec(**words))

    for field in ("loss", "train_op", "predictions", "prediction", "metric", "update"):
        run.attempt(field, build, field)


def replace(run):
    def build(**changes):
        spec = Spec("train", loss=tf.constant(1.0), train_op=tf.no_op())
        return _show(spec._replace(**changes))

    run.attempt("predictions", lambda: _inside(lambda: build(predictions={"a": tf.constant(1.0)})))
    run.attempt("same mode", lambda: _inside(lambda: build(mode="train")))
    run.attempt("other mode", lambda: _inside(lambda: build(mode="eval")))
    run.attempt("bad loss", lambda: _inside(lambda: build(loss=tf.constant([1.0, 2.0]))))
    run.attempt("no op", lambda: _inside(lambda: build(train_op=None)))
    run.attempt("unknown", lambda: _inside(lambda: build(other=1)))


def default_export_outputs(run):
    def fields(**words):
        spec = Spec("infer", {"a": tf.constant([1.0])}, **words)
        return None if spec.export_outputs is None else sorted(spec.export_outputs)

    output = tf.estimator.export.PredictOutput
    run.attempt("none", lambda: _inside(fields))
    run.attempt("one", lambda: _inside(lambda: fields(export_outputs={"e": output({"a": tf.constant([1.0])})})))
    run.attempt("empty", lambda: _inside(lambda: fields(export_outputs={})))


def mode_keys(run):
    keys = tf.estimator.ModeKeys
    return {name: getattr(keys, name) for name in dir(keys) if not name.startswith("_")}


def metrics_of_all_kinds(run):
    def model_fn(features, labels, mode):
        x = features["x"]
        metrics = {
            "mean": v1.metrics.mean(x),
            "auc": v1.metrics.auc(labels > 0, tf.sigmoid(x[:, :1])),
            "accuracy": v1.metrics.accuracy(labels > 0, x[:, :1] > 0),
            "array": v1.metrics.mean_tensor(x),
            "matrix": _confusion(labels, x),
            "constant": (tf.constant(5), tf.no_op()),
            "text": (tf.constant("words"), tf.no_op()),
        }
        metric = tf.keras.metrics.Mean()
        metric.update_state(x)
        metrics["keras"] = metric
        spec = Spec(
            mode, loss=tf.reduce_mean(x), train_op=v1.assign_add(v1.train.get_global_step(), 1), eval_metric_ops=metrics
        )
        return spec

    estimator = make(run, model_fn).train(forever, steps=1)
    return estimator.evaluate(once)


def _confusion(labels, x):
    matrix = v1.get_variable(
        "matrix", [2, 2], tf.int32, v1.zeros_initializer(), collections=[v1.GraphKeys.LOCAL_VARIABLES]
    )
    now = tf.math.confusion_matrix(tf.cast(labels[:, 0] > 0, tf.int32), tf.cast(x[:, 0] > 0, tf.int32), 2)
    return matrix, v1.assign_add(matrix, now)


def metric_named_loss_or_global_step(run):
    def model(name):
        def model_fn(features, labels, mode):
            loss = tf.reduce_mean(features["x"]) + 1
            metrics = {name: v1.metrics.mean(tf.constant(3.0))}
            step = v1.assign_add(v1.train.get_global_step(), 1)
            return Spec(mode, loss=loss, train_op=step, eval_metric_ops=metrics)

        return model_fn

    for name in ("loss", "global_step", "a/b", "x y"):
        estimator = make(run, model(name), name.replace("/", "_").replace(" ", "_")).train(forever, steps=1)
        run.attempt(name, estimator.evaluate, once)


def metric_that_is_a_tuple_of_tensors(run):
    def model_fn(features, labels, mode):
        loss = tf.reduce_mean(features["x"])
        pair = (tf.constant(1.0), tf.constant(2.0))
        metrics = {"pair": (pair, tf.no_op()), "dict": ({"a": tf.constant(1.0)}, tf.no_op())}
        return Spec(mode, loss=loss, train_op=v1.assign_add(v1.train.get_global_step(), 1), eval_metric_ops=metrics)

    estimator = make(run, model_fn)
    run.attempt("train", lambda: bool(estimator.train(forever, steps=1)))
    run.attempt("evaluate", estimator.evaluate, once)


def add_metrics(run):
    def more(features, labels, predictions, config):
        run.note("config", config is not None)
        return {"more": v1.metrics.mean(predictions["p"])}

    def nothing():
        return {"plain": v1.metrics.mean(tf.constant(1.0))}

    estimator = make(run).train(forever, steps=2)
    extended = tf.estimator.add_metrics(estimator, more)
    run.note("more", extended.evaluate(once))
    run.note("twice", tf.estimator.add_metrics(extended, nothing).evaluate(once))
    run.attempt("wrong word", lambda: tf.estimator.add_metrics(estimator, lambda other: {}))
    run.attempt("no function", lambda: tf.estimator.add_metrics(estimator, 5))
    run.attempt(
        "same name", lambda: tf.estimator.add_metrics(estimator, lambda: {"mae": v1.metrics.mean(1.0)}).evaluate(once)
    )
    run.note("same folder", extended.model_dir == estimator.model_dir)
    run.note("params", extended.params)


def call_logit_fn(run):
    call = tf.estimator.experimental.call_logit_fn
    takes = []

    def logit_fn(features, mode, params=None, config=None):
        takes.append([mode, params, config])
        return features

    run.note("returned", call(logit_fn, 5, "train", {"a": 1}, "config"))
    run.note("taken", takes)
    run.attempt("list", call, lambda features: [features], 5, "train", {}, None)
    run.attempt(
        "tensor", lambda: _inside(lambda: call(lambda features: tf.constant(1.0), 5, "train", {}, None).shape.as_list())
    )
    run.attempt("unknown", call, lambda features, other: 1, 5, "train", {}, None)


USED = (X, Y, data, linear)
