"""Weights of any size can be streamed: scalars of optimizers, weights without elements, whatever the store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from cerebras_tensorflow.graph.program import Residence, WeightSpec
from cerebras_tensorflow.runtime.weight_store.file import FileStore
from cerebras_tensorflow.runtime.weight_store.mapped import MappedStore
from cerebras_tensorflow.runtime.weight_store.remote import ServerStore
from tests.unit.compiler.small_graphs import WIDTH, MakeStore, build, run_small, v1, weight
from tests.unit.runtime.weight_store.test_remote import weight_servers

STORES = ("memory", "mapped", "file", "servers")
SLICED = (WIDTH, 64)  # large enough for four slices of 512 bytes


@pytest.fixture(params=STORES)
def place(request: pytest.FixtureRequest) -> Iterator[tuple[Residence, MakeStore]]:
    """Where the weights lie, and the store for them."""
    if request.param != "servers":
        residence = {"memory": Residence.HOST_MEMORY, "mapped": Residence.MAPPED_FILE, "file": Residence.STORE}
        yield residence[request.param], FileStore if request.param == "file" else MappedStore
        return
    with weight_servers(2) as servers:

        def remote(specs: Sequence[WeightSpec], _folder: Path) -> ServerStore:
            return ServerStore(specs, servers)

        yield Residence.STORE, remote


def mean_loss(x: Any) -> Any:
    """A loss of a matrix, a scalar, a vector and a weight without elements."""
    scale = v1.get_variable("scale", [], initializer=v1.ones_initializer())
    shift = v1.get_variable("shift", [64], initializer=v1.zeros_initializer())
    empty = v1.get_variable("empty", [0, 64], initializer=v1.zeros_initializer())
    y = tf.concat([tf.tanh(tf.matmul(x, weight("w", SLICED)) * scale + shift), empty], 0)
    return tf.reduce_mean(y * y)


def adam(x: Any, step: Any) -> tuple[Any, Any]:
    loss = mean_loss(x)
    return loss, v1.train.AdamOptimizer(0.01).minimize(loss, step)


def momentum_with_a_rate_in_a_variable(x: Any, step: Any) -> tuple[Any, Any]:
    loss = mean_loss(x)
    rate = v1.get_variable("rate", [], initializer=v1.constant_initializer(0.1), trainable=False)
    with tf.control_dependencies([v1.train.MomentumOptimizer(rate, 0.9).minimize(loss, step)]):
        return loss, tf.group(rate.assign(rate * 0.5))


def adamw_of_assigns(x: Any, step: Any) -> tuple[Any, Any]:
    loss = mean_loss(x)
    decay = v1.get_variable("decay", [], initializer=v1.constant_initializer(0.1), trainable=False)
    updates = []
    for gradient, w in zip(tf.gradients(loss, v1.trainable_variables()), v1.trainable_variables(), strict=True):
        m = v1.get_variable(f"{w.op.name}/m", w.shape, initializer=v1.zeros_initializer(), trainable=False)
        next_m = 0.9 * m + 0.1 * gradient
        updates += [w.assign_sub(0.1 * (next_m + decay * w)), m.assign(next_m)]
    with tf.control_dependencies(updates):
        return loss, tf.group(decay.assign(decay * 0.9), step.assign_add(1))


def a_weight_as_the_gradient_of_another(x: Any, step: Any) -> tuple[Any, Any]:
    loss = mean_loss(x)
    pairs = [(tf.convert_to_tensor(weight("other", SLICED)), v) for v in v1.trainable_variables() if v.op.name == "w"]
    return loss, v1.train.GradientDescentOptimizer(0.1).apply_gradients(pairs, step)


MODELS = (adam, momentum_with_a_rate_in_a_variable, adamw_of_assigns, a_weight_as_the_gradient_of_another)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_weights_of_all_sizes_are_streamed_with_the_bits_of_the_pipelined_mode(
    model: Any, place: tuple[Residence, MakeStore]
) -> None:
    residence, make_store = place
    small = build(model)
    expected = run_small(small, "pipelined", 3)
    for min_bytes in (0, 5):
        result = run_small(
            small, "weight_streaming", 3, min_bytes, 3000, make_store, residence=residence, slice_bytes=512
        )
        assert result.bits() == expected.bits(), min_bytes
        assert "w" in result.streamed
        assert ("scale" in result.streamed) == (min_bytes == 0)
        assert "empty" not in result.streamed  # it has nothing to move
