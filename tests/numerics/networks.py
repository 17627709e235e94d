"""Generated networks: layers of many kinds and optimizers, drawn by hypothesis, built as training graphs."""

# B batch, S sequence, T tokens (B x S), H hidden, V vocabulary

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import tensorflow as tf

from tests.numerics.streaming import VOCABULARY, Built, build
from tests.numerics.test_weight_streaming_is_exact import accumulated, adam, clipped, decoupled_decay, momentum

v1 = tf.compat.v1
HIDDEN = 16


@dataclass(frozen=True)
class Layer:
    """One layer.

    Attributes:
        kind: Name of a function in KINDS.
        shared: Whether it reuses the first shared weight of its shape instead of making a new one.
        activation: Name of a function in tf.nn or tf.
    """

    kind: str
    shared: bool
    activation: str


@dataclass(frozen=True)
class Network:
    """A network with its training.

    Attributes:
        layers: In order.
        optimizer: Name in OPTIMIZERS.
        is_tied: Whether the vocabulary's table makes the logits too.
        num_heads: Losses that are summed by tf.add_n.
    """

    layers: tuple[Layer, ...]
    optimizer: str
    is_tied: bool
    num_heads: int


class _Weights:
    """Variables of a network, some of them shared."""

    def __init__(self) -> None:
        self._first: dict[tuple[int, ...], Any] = {}
        self._count = 0

    def __call__(self, shape: tuple[int, ...], shared: bool = False) -> Any:
        """Return a weight of a shape; the first one of the shape if it is shared."""
        if shared and shape in self._first:
            return self._first[shape]
        self._count += 1
        made = v1.get_variable(f"w{self._count}", shape, initializer=v1.random_normal_initializer(stddev=0.2))
        return self._first.setdefault(shape, made) if shared else made

    def untrained(self, shape: tuple[int, ...], value: float = 0.0) -> Any:
        """Return a variable that no gradient changes."""
        self._count += 1
        return v1.get_variable(f"s{self._count}", shape, initializer=v1.constant_initializer(value), trainable=False)


def _dense(x: Any, ids: Any, layer: Layer, weights: _Weights) -> Any:
    return _act(layer, tf.matmul(x, weights((HIDDEN, HIDDEN), layer.shared)) + weights((HIDDEN,), layer.shared))


def _transposed(x: Any, ids: Any, layer: Layer, weights: _Weights) -> Any:
    return x + _act(layer, tf.matmul(x, weights((HIDDEN, HIDDEN), layer.shared), transpose_b=True))


def _branches(x: Any, ids: Any, layer: Layer, weights: _Weights) -> Any:
    left, right = (tf.matmul(x, weights((HIDDEN, HIDDEN), layer.shared)) for _ in range(2))
    return x + _act(layer, left) * tf.sigmoid(right)


def _moments(x: Any, ids: Any, layer: Layer, weights: _Weights) -> Any:
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + 1e-6) * (1.0 + weights((HIDDEN,), layer.shared))


def _concat(x: Any, ids: Any, layer: Layer, weights: _Weights) -> Any:
    wide = tf.concat([x, _act(layer, x)], -1)
    return tf.matmul(wide, weights((2 * HIDDEN, HIDDEN), layer.shared))


def _slices(x: Any, ids: Any, layer: Layer, weights: _Weights) -> Any:
    left, right = x[:, : HIDDEN // 2], x[:, HIDDEN // 2 :]
    rows = weights((4 * HIDDEN, HIDDEN), layer.shared)[3 : 3 + HIDDEN]
    return x + _act(layer, tf.matmul(tf.concat([right * left, left], -1), rows))


def _gather(x: Any, ids: Any, layer: Layer, weights: _Weights) -> Any:
    table = weights((VOCABULARY, HIDDEN), layer.shared)
    return x + _act(layer, tf.nn.embedding_lookup(table, ids) * tf.nn.embedding_lookup(table, (ids + 1) % VOCABULARY))


def _many_uses(x: Any, ids: Any, layer: Layer, weights: _Weights) -> Any:
    y = tf.matmul(x, weights((HIDDEN, HIDDEN), layer.shared))
    return tf.add_n([x, _act(layer, y), tf.sin(y), 0.5 * tf.cos(y), y * tf.sigmoid(x)])


def _batch_norm(x: Any, ids: Any, layer: Layer, weights: _Weights) -> Any:
    mean, variance = tf.nn.moments(x, [0])
    for moving, value in ((weights.untrained((HIDDEN,)), mean), (weights.untrained((HIDDEN,), 1.0), variance)):
        v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, moving.assign(0.9 * moving + 0.1 * tf.stop_gradient(value)))
    return tf.nn.batch_normalization(x, mean, variance, None, 1.0 + weights((HIDDEN,), layer.shared), 1e-3)


def _counted(x: Any, ids: Any, layer: Layer, weights: _Weights) -> Any:
    counter = weights.untrained(())
    v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, counter.assign_add(1.0))
    return x * (1.0 + 0.01 * counter)


def _seen_rows(x: Any, ids: Any, layer: Layer, weights: _Weights) -> Any:
    seen = weights.untrained((VOCABULARY, HIDDEN))
    v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, seen.scatter_add(tf.IndexedSlices(tf.stop_gradient(x), ids)))
    return x + 0.01 * tf.nn.embedding_lookup(seen, ids)


KINDS: dict[str, Callable[[Any, Any, Layer, _Weights], Any]] = {
    "dense": _dense, "transposed": _transposed, "branches": _branches, "moments": _moments, "concat": _concat,
    "slices": _slices, "gather": _gather, "many_uses": _many_uses, "batch_norm": _batch_norm, "counted": _counted,
    "seen_rows": _seen_rows,
}  # fmt: skip


def _act(layer: Layer, x: Any) -> Any:
    return getattr(tf.nn, layer.activation)(x)


def _averaged(loss: Any, step: Any) -> Any:
    """Adam, with a moving average of the weights after each step."""
    with tf.control_dependencies([adam(loss, step)]):
        return v1.train.ExponentialMovingAverage(0.9).apply(v1.trainable_variables())


OPTIMIZERS: dict[str, Callable[[Any, Any], Any]] = {
    "descent": lambda loss, step: v1.train.GradientDescentOptimizer(0.1).minimize(loss, step),
    "momentum": momentum,
    "adam": adam,
    "adagrad": lambda loss, step: v1.train.AdagradOptimizer(0.1).minimize(loss, step),
    "rmsprop": lambda loss, step: v1.train.RMSPropOptimizer(1e-3, momentum=0.5).minimize(loss, step),
    "ftrl": lambda loss, step: v1.train.FtrlOptimizer(0.1).minimize(loss, step),
    "clipped": clipped,
    "decoupled_decay": decoupled_decay,
    "accumulated": accumulated,
    "averaged": _averaged,
}

layers = st.builds(
    Layer,
    kind=st.sampled_from(sorted(KINDS)),
    shared=st.booleans(),
    activation=st.sampled_from(["tanh", "relu", "gelu", "sigmoid"]),
)
networks = st.builds(
    Network,
    layers=st.lists(layers, min_size=2, max_size=6).map(tuple),
    optimizer=st.sampled_from(sorted(OPTIMIZERS)),
    is_tied=st.booleans(),
    num_heads=st.integers(1, 4),
)


def build_network(network: Network) -> Built:
    """Build the training graph of a network."""

    def loss(ids_BS: Any, labels_BS: Any) -> Any:
        weights = _Weights()
        ids_T = tf.reshape(ids_BS, [-1])
        table_VH = weights((VOCABULARY, HIDDEN))
        x_TH = tf.nn.embedding_lookup(table_VH, ids_T)
        for layer in network.layers:
            x_TH = KINDS[layer.kind](x_TH, ids_T, layer, weights)
        losses = []
        for head in range(network.num_heads):
            table = table_VH if network.is_tied else weights((VOCABULARY, HIDDEN))
            logits_TV = tf.matmul(tf.tanh(x_TH * (1.0 + head)), table, transpose_b=True)
            labels_T = tf.reshape(labels_BS, [-1])
            losses.append(tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels_T, logits_TV)))
        return tf.add_n(losses)

    def train(loss_value: Any, step: Any) -> Any:
        with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
            return OPTIMIZERS[network.optimizer](loss_value, step)

    return build(train, loss)
