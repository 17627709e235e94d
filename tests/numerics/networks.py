"""Generated networks: layers of many kinds and optimizers, drawn at random, built as training graphs."""

# B batch, S sequence, T tokens (B x S), H hidden, V vocabulary

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow as tf

from tests.numerics.layers import KINDS, LOOPS, RANDOM_KINDS, Layer, Weights
from tests.numerics.streaming import VOCABULARY, Built, build
from tests.numerics.test_weight_streaming_is_exact import (
    accumulated,
    adam,
    clipped,
    decoupled_decay,
    loss_scaled,
    momentum,
)

v1 = tf.compat.v1


@dataclass(frozen=True)
class Network:
    """A network with its training.

    Attributes:
        layers: In order.
        optimizer: Name in OPTIMIZERS.
        is_tied: Whether the vocabulary's table makes the logits too.
        num_heads: Losses that are summed by tf.add_n.
        min_stream_bytes: Smaller variables are not streamed [B].
        window_bytes: Bytes of streamed weights in memory at a time [B].
    """

    layers: tuple[Layer, ...]
    optimizer: str
    is_tied: bool
    num_heads: int
    min_stream_bytes: int
    window_bytes: int

    @property
    def draws_numbers(self) -> bool:
        """Whether its training draws random numbers: in a plain session these are others than in ours."""
        return any(layer.kind in RANDOM_KINDS for layer in self.layers)


def draw_network(seed: int) -> Network:
    """Return the network of a seed. Networks of different seeds are drawn independently."""
    draw = random.Random(seed)
    layers = [
        Layer(
            kind=draw.choice(sorted(KINDS)),
            shared=draw.random() < 0.4,
            activation=draw.choice(["tanh", "relu", "gelu", "sigmoid"]),
        )
        for _ in range(draw.randint(2, 6))
    ]
    return Network(
        layers=tuple(layers),
        optimizer=draw.choice(sorted(OPTIMIZERS)),
        is_tied=draw.random() < 0.5,
        num_heads=draw.randint(1, 4),
        min_stream_bytes=draw.choice([0, 64, 1024]),
        window_bytes=draw.choice([3_000, 40_000, 1_000_000]),
    )


def _averaged(loss: Any, step: Any) -> Any:
    """Adam, with a moving average of the weights after each step."""
    with tf.control_dependencies([adam(loss, step)]):
        return v1.train.ExponentialMovingAverage(0.9, step, zero_debias=True).apply(v1.trainable_variables())


def _clipped_each(loss: Any, step: Any) -> Any:
    """Adagrad on gradients that are clipped one by one, dense and sparse."""
    optimizer = v1.train.AdagradOptimizer(0.1)
    pairs = optimizer.compute_gradients(loss, aggregation_method=tf.AggregationMethod.EXPERIMENTAL_ACCUMULATE_N)
    return optimizer.apply_gradients([(tf.clip_by_norm(gradient, 0.1), weight) for gradient, weight in pairs], step)


def _two_groups(loss: Any, step: Any) -> Any:
    """Two optimizers, each for a half of the weights; the second one after the first."""
    weights = v1.trainable_variables()
    gradients = tf.gradients(loss, weights, gate_gradients=True)
    half = len(weights) // 2
    first = v1.train.AdamOptimizer(1e-2).apply_gradients(list(zip(gradients, weights, strict=True))[:half])
    with tf.control_dependencies([first]):
        rest = list(zip(gradients, weights, strict=True))[half:]
        return v1.train.MomentumOptimizer(0.05, 0.9, use_nesterov=True).apply_gradients(rest, step)


def _minimize(make: Callable[[], Any]) -> Callable[[Any, Any], Any]:
    return lambda loss, step: make().minimize(loss, step)


OPTIMIZERS: dict[str, Callable[[Any, Any], Any]] = {
    "descent": _minimize(lambda: v1.train.GradientDescentOptimizer(0.1)),
    "momentum": momentum,
    "adam": adam,
    "adagrad": _minimize(lambda: v1.train.AdagradOptimizer(0.1)),
    "adadelta": _minimize(lambda: v1.train.AdadeltaOptimizer(1.0)),
    "rmsprop": _minimize(lambda: v1.train.RMSPropOptimizer(1e-3, momentum=0.5)),
    "centered": _minimize(lambda: v1.train.RMSPropOptimizer(1e-3, centered=True)),
    "ftrl": _minimize(lambda: v1.train.FtrlOptimizer(0.1, l1_regularization_strength=1e-3)),
    "proximal": _minimize(lambda: v1.train.ProximalAdagradOptimizer(0.1, l2_regularization_strength=1e-3)),
    "clipped": clipped,
    "clipped_each": _clipped_each,
    "decoupled_decay": decoupled_decay,
    "accumulated": accumulated,
    "loss_scaled": loss_scaled,
    "averaged": _averaged,
    "two_groups": _two_groups,
}


def build_network(network: Network) -> Built:
    """Build the training graph of a network."""
    return build(partial(train_network, network), partial(network_loss, network, vocabulary=VOCABULARY))


def network_loss(network: Network, ids_BS: Any, labels_BS: Any, vocabulary: int) -> Any:
    """Return the loss of a network."""
    weights = Weights(vocabulary, ids_BS.shape[1])
    ids_T = tf.reshape(ids_BS, [-1])
    table_VH = weights.table()
    x_TH = tf.nn.embedding_lookup(table_VH, ids_T)
    for layer in network.layers:
        x_TH = KINDS[layer.kind](x_TH, ids_T, layer, weights)
    losses = []
    for head in range(network.num_heads):
        table = table_VH if network.is_tied else weights.table()
        logits_TV = tf.matmul(tf.tanh(x_TH * (1.0 + head)), table, transpose_b=True)
        labels_T = tf.reshape(labels_BS, [-1])
        losses.append(tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels_T, logits_TV)))
    return tf.add_n([*losses, *v1.losses.get_regularization_losses()])


def train_network(network: Network, loss: Any, step: Any) -> Any:
    """Return the train op of a network, with its UPDATE_OPS."""
    updates = v1.get_collection(v1.GraphKeys.UPDATE_OPS)
    if any(layer.kind in LOOPS for layer in network.layers):
        # TensorFlow cannot run gradients of loops of version 1 that wait for an op that waits for the loop.
        return tf.group(OPTIMIZERS[network.optimizer](loss, step), updates)
    with tf.control_dependencies(updates):
        return OPTIMIZERS[network.optimizer](loss, step)
