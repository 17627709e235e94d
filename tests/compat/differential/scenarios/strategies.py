"""Strategies of tf.distribute in a RunConfig, on one device."""

import tensorflow as tf
from common import X, Y, data, forever, linear, make, once, v1, weights


def _strategies():
    yield "mirrored", lambda: tf.distribute.MirroredStrategy(["/cpu:0"])
    yield "mirrored v1", lambda: v1.distribute.MirroredStrategy(["/cpu:0"])
    yield "one device", lambda: tf.distribute.OneDeviceStrategy("/cpu:0")
    yield "central storage", lambda: v1.distribute.experimental.CentralStorageStrategy()


def _strategy(run, name, strategy):
    seen = []

    def input_fn(input_context=None):
        if input_context is not None:
            seen.append([input_context.num_input_pipelines, input_context.num_replicas_in_sync])
        return tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).batch(4).repeat(10)

    def model_fn(features, labels, mode, params):
        context = tf.distribute.get_replica_context()
        seen.append([mode, context is not None and context.num_replicas_in_sync])
        return linear(features, labels, mode, params)

    estimator = make(run, model_fn, name, train_distribute=strategy, eval_distribute=strategy)
    estimator.train(input_fn, max_steps=6)
    return {
        "weights": weights(estimator),
        "metrics": estimator.evaluate(data(repeat=False)),
        "predictions": [row["p"] for row in estimator.predict(once)],
        "seen": seen,
    }


def strategies_on_one_device(run):
    for name, build in _strategies():
        run.attempt(name, lambda name=name, build=build: _strategy(run, name.replace(" ", "_"), build()))
    run.ignore_files()


def strategy_by_train_and_evaluate(run):
    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
    estimator = make(run, train_distribute=strategy, save_checkpoints_steps=2)
    spec = tf.estimator.EvalSpec(once, throttle_secs=0)
    return tf.estimator.train_and_evaluate(estimator, tf.estimator.TrainSpec(forever, 4), spec)


def a_strategy_given_twice(run):
    class Both:
        train_distribute = eval_distribute = tf.distribute.OneDeviceStrategy("/cpu:0")
        remote_cluster = None

    mirrored = tf.distribute.MirroredStrategy(["/cpu:0"])
    config = tf.estimator.RunConfig
    run.attempt("twice", lambda: config(train_distribute=mirrored, experimental_distribute=Both()))
    run.attempt("evaluation", lambda: config(eval_distribute=mirrored, experimental_distribute=Both()))
    run.attempt("once", lambda: type(config(experimental_distribute=Both()).train_distribute))
