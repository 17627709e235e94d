"""Ops that TensorFlow would merge are kept separate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cerebras_tensorflow.graph.cost import op_outputs
from cerebras_tensorflow.graph.separate_ops import keep_separate

v1 = tf.compat.v1


def convolution(x: Any) -> list[Any]:
    kernel, bias = tf.ones([3, 3, 4, 4]), tf.ones([4])
    y = tf.nn.bias_add(tf.nn.conv2d(tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]]), kernel, 1, "VALID"), bias)
    with tf.GradientTape() as tape:  # gives both gradients the same tensor, unlike tf.gradients
        tape.watch([kernel, bias])
        loss = tf.reduce_sum(tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, "SAME"), bias) ** 2)
    return [y, *tape.gradient(loss, [kernel, bias])]


def executed(graph_def: Any, fetches: list[str], x: np.ndarray) -> tuple[set[str], list[np.ndarray]]:
    """Return the ops that TensorFlow runs, and what they give."""
    metadata, config = v1.RunMetadata(), v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with tf.Graph().as_default() as graph, v1.Session(config=config) as session:
        tf.graph_util.import_graph_def(graph_def, name="")
        options = v1.RunOptions(output_partition_graphs=True)
        values = session.run(fetches, {"x:0": x}, options, metadata)
        assert graph is session.graph
    return {node.op for part in metadata.partition_graphs for node in part.node}, values


def test_nothing_is_merged_and_values_stay() -> None:
    with tf.Graph().as_default() as graph:
        fetches = [tensor.name for tensor in convolution(v1.placeholder(tf.float32, [2, 5, 6, 4], "x"))]
    graph_def, outputs = keep_separate(graph.as_graph_def(), op_outputs(graph))
    new = [node for node in graph_def.node if node.op == "EnsureShape"]
    assert len(new) == 4
    assert all(outputs[node.name][0].num_bytes for node in new)
    x = np.random.default_rng(1).normal(size=(2, 5, 6, 4)).astype(np.float32)
    plain, expected = executed(graph.as_graph_def(), fetches, x)
    ops, values = executed(graph_def, fetches, x)
    assert not any("With" in op for op in ops)
    if any("Mkl" in op for op in plain):  # with oneDNN
        assert any("With" in op for op in plain)
    for value, other in zip(values, expected, strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-4)


@pytest.mark.parametrize("op", ["MatMul", "Relu"])
def test_a_graph_without_convolutions_stays(op: str) -> None:
    graph_def = v1.GraphDef()
    graph_def.node.add(name="a", op=op)
    assert keep_separate(graph_def, {})[0] is graph_def
