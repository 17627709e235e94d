"""The tiny model of the conformance suite: a line, fitted by gradient descent."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

import cerebras_tensorflow  # noqa: F401 - makes tf.estimator ours

X = np.random.RandomState(0).randn(32, 3).astype(np.float32)
Y = X @ np.array([[1.0], [2.0], [3.0]], np.float32)


def linear(features: Any, labels: Any, mode: str, params: Any) -> Any:
    """model_fn: predictions, mean squared error, its mean absolute error as a metric."""
    x = features["x"] if isinstance(features, dict) else features
    weights = tf.compat.v1.get_variable("w", [3, 1], initializer=tf.compat.v1.zeros_initializer())
    bias = tf.compat.v1.get_variable("b", [], initializer=tf.compat.v1.zeros_initializer())
    predictions = tf.matmul(x, weights) + bias
    outputs = {"p": predictions, "twice": 2 * predictions}
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions=outputs)
    loss = tf.reduce_mean(tf.square(predictions - labels))
    optimizer = tf.compat.v1.train.GradientDescentOptimizer((params or {}).get("rate", 0.1))
    train_op = optimizer.minimize(loss, tf.compat.v1.train.get_or_create_global_step())
    metrics = {"mae": tf.compat.v1.metrics.mean_absolute_error(labels, predictions)}
    return tf.estimator.EstimatorSpec(mode, outputs, loss, train_op, metrics)


def repeated() -> Any:
    """input_fn: four batches of eight, without end."""
    return tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).batch(8).repeat()


def once() -> Any:
    """input_fn: four batches of eight."""
    return tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).batch(8)


def serving() -> Any:
    """serving_input_receiver_fn of the model."""
    return tf.estimator.export.build_raw_serving_input_receiver_fn({"x": tf.zeros([1, 3])})()
