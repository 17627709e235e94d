"""The model and the data that the scenarios share."""

import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
X = np.linspace(-1, 1, 24).reshape(8, 3).astype(np.float32)
Y = (X @ np.array([[1.0], [2.0], [3.0]])).astype(np.float32)


def linear(features, labels, mode, params):
    """model_fn: a line, fitted by gradient descent."""
    x = features["x"] if isinstance(features, dict) else features
    weights = v1.get_variable("w", [3, 1], initializer=v1.zeros_initializer())
    bias = v1.get_variable("b", [], initializer=v1.zeros_initializer())
    predictions = tf.matmul(x, weights) + bias
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions={"p": predictions, "x": x})
    loss = tf.reduce_mean(tf.square(predictions - labels))
    optimizer = v1.train.GradientDescentOptimizer((params or {}).get("rate", 0.1))
    train_op = optimizer.minimize(loss, v1.train.get_or_create_global_step())
    metrics = {"mae": v1.metrics.mean_absolute_error(labels, predictions)}
    return tf.estimator.EstimatorSpec(mode, {"p": predictions}, loss, train_op, metrics)


def data(batch=4, repeat=True, shuffle=False):
    """input_fn maker: batches in order."""

    def input_fn():
        dataset = tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).batch(batch)
        return dataset.repeat() if repeat else dataset

    return input_fn


once = data(repeat=False)
forever = data()


def make(run, model_fn=linear, name="model", params=None, **config):
    """Return an Estimator in a folder below the run's."""
    config = tf.estimator.RunConfig(tf_random_seed=1, **config)
    return tf.estimator.Estimator(model_fn, run.path(name), config, params)


def serving():
    """serving_input_receiver_fn of the model."""
    return tf.estimator.export.build_raw_serving_input_receiver_fn({"x": tf.zeros([1, 3])})()


def weights(estimator):
    """Return the trained variables by name."""
    return {name: estimator.get_variable_value(name) for name in estimator.get_variable_names()}
