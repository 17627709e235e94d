"""Casts of weights belong to one use each."""

from __future__ import annotations

import tensorflow as tf

from cerebras_tensorflow.graph.nodes import NodeTable
from cerebras_tensorflow.graph.weight_casts import cast_for_each_use

v1 = tf.compat.v1


def casts(weights: set[str]) -> tuple[int, set[str]]:
    """Casts of a graph with a weight and an input that are each cast for three uses, and their users' inputs."""
    graph = tf.Graph()
    with graph.as_default():
        weight = v1.get_variable("w", [4, 4], use_resource=True)
        low = tf.cast(weight, tf.bfloat16)
        x = tf.cast(v1.placeholder(tf.float32, [4, 4]), tf.bfloat16)
        for number in range(3):
            tf.matmul(x, low, name=f"use_{number}")
    graph_def = graph.as_graph_def()
    cast_for_each_use(NodeTable(graph_def), weights)
    table = NodeTable(graph_def)
    names = {table.data_inputs(f"use_{number}")[1].node for number in range(3)}
    return sum(node.op == "Cast" for node in table.nodes.values()), names


def test_each_use_of_a_weight_has_its_own_cast() -> None:
    count, inputs = casts({"w"})
    assert (count, len(inputs)) == (4, 3)


def test_other_casts_stay_shared() -> None:
    count, inputs = casts(set())
    assert (count, len(inputs)) == (2, 1)
