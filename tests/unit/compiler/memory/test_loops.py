"""The plan counts what loops keep for the backward pass: each iteration's values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from cerebras_tensorflow.compiler.memory.loops import loops_of_unknown_length, values_kept_by_loops
from cerebras_tensorflow.compiler.memory.trip_counts import trip_counts
from cerebras_tensorflow.estimator.model.graph_settings import graph_semantics
from cerebras_tensorflow.graph.cost import op_outputs
from cerebras_tensorflow.graph.loops import frames_of_nodes
from cerebras_tensorflow.graph.nodes import NodeTable
from cerebras_tensorflow.graph.topological_order import order_nodes

v1 = tf.compat.v1
ROWS, WIDTH = 8, 16
STATE_BYTES = 4 * ROWS * WIDTH


def layer(x: Any) -> Any:
    with v1.variable_scope("layer", reuse=v1.AUTO_REUSE):
        return tf.tanh(tf.matmul(x, v1.get_variable("w", [WIDTH, WIDTH])))


def counted(x: Any, last: Any, step: int = 1) -> Any:
    return tf.while_loop(lambda i, _: i < last, lambda i, state: (i + step, layer(state)), (0, x))[1]


def until(x: Any) -> Any:
    (y,) = tf.nest.flatten(
        tf.while_loop(
            lambda state: tf.reduce_max(state) > 0.1, lambda state: (layer(state),), (x,), maximum_iterations=9
        )
    )
    return y


def nested(x: Any) -> Any:
    return tf.while_loop(lambda i, _: i <= 2, lambda i, state: (i + 1, counted(state, 5)), (0, x))[1]


MODELS: dict[str, tuple[Callable[[Any], Any], set[int | None], int]] = {
    "a bound": (lambda x: counted(x, 5), {5}, 5),
    "steps of three": (lambda x: counted(x, 7, 3), {3}, 3),
    "a static shape": (lambda x: counted(x, tf.shape(x)[1]), {WIDTH}, WIDTH),
    "most iterations": (until, {9}, 9),
    "map_fn": (lambda x: tf.map_fn(layer, tf.stack([x] * 7)), {7}, 7),
    "scan": (lambda x: tf.scan(lambda state, _: layer(state), tf.zeros([6, 1]), x), {6}, 6),
    "a loop in a loop": (nested, {3, 5}, 15),
    "only a run knows": (lambda x: counted(x, v1.placeholder(tf.int32, [])), {None}, 1),
}


@pytest.mark.parametrize(("model", "trips", "states"), MODELS.values(), ids=MODELS)
def test_a_loop_keeps_the_values_of_all_its_iterations(
    model: Callable[[Any], Any], trips: set[int | None], states: int
) -> None:
    with graph_semantics(), tf.Graph().as_default() as graph:
        y = model(tf.ones([ROWS, WIDTH]))
        tf.gradients(tf.reduce_sum(y), v1.trainable_variables())
        table, outputs = NodeTable(graph.as_graph_def()), op_outputs(graph)
    found = trip_counts(table, outputs, frames_of_nodes(table))
    forward = {count for frame, count in found.items() if not frame[0].startswith("gradients")}
    assert forward == trips
    assert bool(loops_of_unknown_length(table, outputs)) == (None in trips)
    kept = list(values_kept_by_loops(table, order_nodes(table, sources=[]), outputs))
    pushed = [value for value in kept if "StackPush" in value.endpoint.node and value.buffer_bytes == STATE_BYTES]
    assert {value.buffers for value in pushed} == {states}
    assert all(value.made < value.last for value in pushed)
