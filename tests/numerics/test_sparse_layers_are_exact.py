"""Sparse training of layers of tf.layers, tf.nn and tf_keras gives the same bits in both modes.

All initializers have a seed: tf_keras draws a new one for each initializer without a seed, so two runs would differ.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
import tf_keras

from cerebras_tensorflow import CSEstimatorSpec
from tests.numerics.test_sparsity_is_exact import METHODS, RIGL, Run, assert_masked, assert_same

v1 = tf.compat.v1
layers = tf_keras.layers
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*(is deprecated|recommend using):UserWarning"),
]


def normal(seed: int) -> Any:
    return tf_keras.initializers.RandomNormal(stddev=0.3, seed=seed)


def v1_normal(seed: int) -> Any:
    return v1.random_normal_initializer(stddev=0.3, seed=seed)


def repeated(x: Any, *shape: int) -> Any:
    """Return the features as often as a shape needs, in this shape."""
    size = 1
    for dim in shape:
        size *= dim
    return tf.reshape(tf.tile(x, [1, size // x.shape[1]]), [-1, *shape])


def v1_dense(x: Any) -> Any:
    hidden = v1.layers.dense(x, 32, tf.nn.relu, kernel_initializer=v1_normal(1))
    return v1.layers.dense(hidden, 16, tf.tanh, kernel_initializer=v1_normal(2))


def v1_conv(x: Any) -> Any:
    hidden = v1.layers.conv2d(repeated(x, 8, 8, 1), 8, 3, activation=tf.nn.relu, kernel_initializer=v1_normal(1))
    hidden = v1.layers.batch_normalization(hidden, training=True)
    return v1.layers.flatten(v1.layers.conv2d(hidden, 8, 3, strides=2, kernel_initializer=v1_normal(2)))


def v1_lstm(x: Any) -> Any:
    cell = v1.nn.rnn_cell.LSTMCell(12, initializer=v1_normal(3))
    return v1.nn.dynamic_rnn(cell, repeated(x, 5, 4), dtype=tf.float32)[0][:, -1]


def keras_dense(x: Any) -> Any:
    first = layers.Dense(32, "relu", kernel_initializer=normal(1))
    last = layers.Dense(16, "tanh", kernel_initializer=normal(2))
    return tf_keras.Sequential([first, layers.LayerNormalization(), last])(x)


def keras_conv(x: Any) -> Any:
    hidden = layers.Conv1D(8, 3, activation="relu", kernel_initializer=normal(1))(repeated(x, 8, 2))
    last = layers.SeparableConv1D(8, 3, depthwise_initializer=normal(2), pointwise_initializer=normal(3))
    return layers.Flatten()(last(hidden))


def keras_lstm(x: Any) -> Any:
    return layers.LSTM(12, kernel_initializer=normal(4), recurrent_initializer=normal(5))(repeated(x, 5, 4))


@pytest.mark.parametrize("sparsity", [RIGL, METHODS["gmp"]], ids=["rigl", "gmp"])
@pytest.mark.parametrize("body", [v1_dense, v1_conv, v1_lstm, keras_dense, keras_conv, keras_lstm])
def test_both_modes(body: Callable[[Any], Any], sparsity: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        loss = tf.reduce_mean(tf.square(tf.reduce_sum(body(features), axis=1, keepdims=True) - labels))
        train_op = v1.train.AdamOptimizer(0.01).minimize(loss, v1.train.get_global_step())
        return CSEstimatorSpec(mode, loss=loss, train_op=train_op)

    run = Run(monkeypatch, tmp_path)
    pipelined = run(model_fn, sparsity=sparsity)
    assert_masked(pipelined, 0.75)
    assert_same(pipelined, run(model_fn, "file", sparsity))
