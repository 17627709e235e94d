"""Scaffold: every argument, in training, evaluation, prediction and export."""

import os

import numpy as np
import tensorflow as tf
from common import forever, linear, make, once, serving, v1, weights

Spec = tf.estimator.EstimatorSpec


def _with(make_scaffold, modes=("train", "eval", "infer")):
    def model_fn(features, labels, mode, params):
        spec = linear(features, labels, mode, params)
        return spec._replace(scaffold=make_scaffold()) if mode in modes else spec

    return model_fn


def _use(run, estimator):
    run.note("weights", weights(estimator.train(forever, steps=3)))
    run.note("evaluated", estimator.evaluate(once))
    run.note("predicted", [row["p"] for row in estimator.predict(once)])


def init_fn(run):
    def scaffold():
        b = v1.trainable_variables()[1]
        place = v1.placeholder(tf.float32, [])
        op = b.assign(place)

        def init(scaffold, session):
            session.run(op, {place: 3.0})
            run.note("scaffold", type(scaffold).__name__)

        return v1.train.Scaffold(init_fn=init)

    _use(run, make(run, _with(scaffold)))


def init_op(run):
    def scaffold():
        place = v1.placeholder(tf.float32, [3, 1])
        w = v1.trainable_variables()[0]
        op = tf.group(v1.global_variables_initializer(), name="all")
        with tf.control_dependencies([op]):
            op = w.assign(place)
        return v1.train.Scaffold(init_op=op, init_feed_dict={place: np.ones([3, 1], np.float32)})

    _use(run, make(run, _with(scaffold)))


def local_init_op(run):
    def model_fn(features, labels, mode, params):
        spec = linear(features, labels, mode, params)
        local = v1.get_local_variable("mine", [], initializer=v1.constant_initializer(4.0))
        other = v1.get_local_variable("other", [], initializer=v1.constant_initializer(5.0))
        metrics = {"mine": (local.read_value(), tf.no_op())} if mode == "eval" else None
        op = tf.group(local.assign(9.0), other.initializer)
        scaffold = v1.train.Scaffold(local_init_op=op)
        return spec._replace(scaffold=scaffold, eval_metric_ops=metrics or spec.eval_metric_ops)

    estimator = make(run, model_fn).train(forever, steps=2)
    return estimator.evaluate(once)


def ready_op(run):
    def refuses():
        return v1.train.Scaffold(ready_op=tf.constant(["b"]))

    def passes():
        return v1.train.Scaffold(ready_op=v1.report_uninitialized_variables())

    run.attempt("refuses", lambda: bool(make(run, _with(refuses), "a").train(forever, steps=1)))
    run.attempt("passes", lambda: bool(make(run, _with(passes), "b").train(forever, steps=1)))


def ready_for_local_init_op(run):
    def scaffold():
        return v1.train.Scaffold(ready_for_local_init_op=v1.report_uninitialized_variables(v1.global_variables()))

    _use(run, make(run, _with(scaffold)))


def summary_op(run):
    def scaffold():
        return v1.train.Scaffold(summary_op=v1.summary.scalar("only", tf.constant(3.0)))

    make(run, _with(scaffold), save_summary_steps=1).train(forever, steps=2)


def saver_with_a_limit(run):
    def scaffold():
        return v1.train.Scaffold(saver=v1.train.Saver(max_to_keep=1))

    make(run, _with(scaffold), save_checkpoints_steps=1).train(forever, steps=4)
    return sorted(name for name in os.listdir(run.path("model")) if name.endswith(".index"))


def saver_of_some_variables(run):
    def scaffold():
        some = [one for one in v1.global_variables() if one.op.name != "b"]
        return v1.train.Scaffold(saver=v1.train.Saver(some))

    estimator = make(run, _with(scaffold))
    estimator.train(forever, steps=2)
    run.note("saved", weights(estimator))
    estimator.train(forever, steps=2)
    run.note("again", weights(estimator))
    run.attempt("evaluated", lambda: estimator.evaluate(once))


def saver_with_other_names(run):
    def scaffold():
        names = {f"renamed/{one.op.name}": one for one in v1.global_variables() if one.op.name != "global_step"}
        names["global_step"] = v1.train.get_global_step()
        return v1.train.Scaffold(saver=v1.train.Saver(names))

    estimator = make(run, _with(scaffold))
    _use(run, estimator)
    estimator.train(forever, steps=2)
    run.note("again", weights(estimator))


def saver_of_moving_averages(run):
    def model_fn(features, labels, mode, params):
        w = v1.get_variable("w", [3, 1], initializer=v1.zeros_initializer())
        average = tf.train.ExponentialMovingAverage(0.5)
        predictions = tf.matmul(features["x"], w)
        if mode == "train":
            loss = tf.reduce_mean(tf.square(predictions - labels))
            op = v1.train.GradientDescentOptimizer(0.1).minimize(loss, v1.train.get_global_step())
            with tf.control_dependencies([op]):
                return Spec(mode, loss=loss, train_op=average.apply([w]))
        scaffold = v1.train.Scaffold(saver=v1.train.Saver(average.variables_to_restore()))
        if mode == "infer":
            return Spec(mode, {"p": predictions}, scaffold=scaffold)
        return Spec(mode, loss=tf.reduce_mean(tf.square(predictions - labels)), scaffold=scaffold)

    estimator = make(run, model_fn)
    _use(run, estimator)
    path = estimator.export_saved_model(run.path("export"), serving)
    reader = tf.train.load_checkpoint(os.path.join(path.decode(), "variables", "variables"))
    run.note("exported", {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()})


def saver_in_a_collection(run):
    def model_fn(features, labels, mode, params):
        spec = linear(features, labels, mode, params)
        v1.add_to_collection(v1.GraphKeys.SAVERS, v1.train.Saver(max_to_keep=2))
        return spec

    make(run, model_fn, save_checkpoints_steps=1).train(forever, steps=4)


def checkpoint_as_saver(run):
    def scaffold():
        named = {one.op.name: one for one in v1.global_variables()}
        return v1.train.Scaffold(saver=tf.train.Checkpoint(**named))

    estimator = make(run, _with(scaffold))
    run.attempt("weights", lambda: weights(estimator.train(forever, steps=2)))
    run.attempt("evaluated", lambda: estimator.evaluate(once))


def copy_from_scaffold(run):
    def scaffold():
        b = v1.trainable_variables()[1]
        op = b.assign(6.0)
        first = v1.train.Scaffold(init_fn=lambda scaffold, session: session.run(op))
        return v1.train.Scaffold(copy_from_scaffold=first, saver=v1.train.Saver(max_to_keep=1))

    _use(run, make(run, _with(scaffold), save_checkpoints_steps=1))


def attributes_in_hooks(run):
    made = []

    class Looks(v1.train.SessionRunHook):
        def after_create_session(self, session, coord):
            (scaffold,) = made[-1:]
            parts = ("init_op", "ready_op", "local_init_op", "summary_op", "saver", "ready_for_local_init_op")
            run.note("parts", {part: getattr(scaffold, part) is not None for part in parts})
            run.note("saver", type(scaffold.saver).__name__)

    def scaffold():
        made.append(v1.train.Scaffold())
        return made[-1]

    make(run, _with(scaffold)).train(forever, hooks=[Looks()], steps=1)


def init_fn_from_a_checkpoint(run):
    first = make(run, name="first").train(forever, steps=3)

    def scaffold():
        saver = v1.train.Saver(v1.trainable_variables())
        path = first.latest_checkpoint()
        return v1.train.Scaffold(init_fn=lambda scaffold, session: saver.restore(session, path))

    return weights(make(run, _with(scaffold, ("train",)), "second").train(forever, steps=1))


def init_from_checkpoint(run):
    first = make(run, name="first").train(forever, steps=3)

    def model_fn(features, labels, mode, params):
        spec = linear(features, labels, mode, params)
        v1.train.init_from_checkpoint(first.latest_checkpoint(), {"w": "w"})
        return spec

    second = make(run, model_fn, "second")
    run.note("predicted", [row["p"] for row in second.predict(once)])
    run.note("weights", weights(second.train(forever, steps=1)))
    run.note("assignment map", weights(make(run, _scoped(first), "third").train(forever, steps=1)))


def _scoped(first):
    def model_fn(features, labels, mode, params):
        with v1.variable_scope("scope"):
            spec = linear(features, labels, mode, params)
        v1.train.init_from_checkpoint(first.model_dir, {"/": "scope/"})
        return spec

    return model_fn


def own_saver_class(run):
    """A Saver with its own save and restore, which training, evaluation, prediction and export call."""
    calls = []

    class Saver(v1.train.Saver):
        def save(self, *args, **kwargs):
            calls.append("save")
            return super().save(*args, **kwargs)

        def restore(self, *args, **kwargs):
            calls.append("restore")
            return super().restore(*args, **kwargs)

    estimator = make(run, _with(lambda: v1.train.Scaffold(saver=Saver())), save_checkpoints_steps=2)
    _use(run, estimator)
    estimator.train(forever, steps=2)
    estimator.export_saved_model(run.path("export"), serving)
    return calls


def saved_tables(run):
    """A table that changes in training is part of checkpoints."""

    def model_fn(features, labels, mode, params):
        spec = linear(features, labels, mode, params)
        table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1, name="table")
        count = v1.train.get_global_step().read_value()
        predictions = {"found": table.lookup(tf.fill([tf.shape(features["x"])[0]], "a"))}
        if mode == "infer":
            return spec._replace(predictions=predictions)
        insert = table.insert(tf.constant(["a"]), [count])
        train_op = tf.group(spec.train_op, insert) if mode == "train" else None
        return spec._replace(predictions=predictions, train_op=train_op)

    estimator = make(run, model_fn)
    estimator.train(forever, steps=2).train(forever, steps=1)
    return [estimator.get_variable_names(), [row["found"] for row in estimator.predict(once)]]
