"""Equal constants become one, and nothing else changes."""

from __future__ import annotations

from collections.abc import Container

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.graph.constants import equal_constants, take_instead
from cerebras_tensorflow.graph.nodes import GraphDef


def run(graph_def: GraphDef, fetch: str, **feeds: object) -> np.ndarray:
    """Return the value of one tensor."""
    with tf.Graph().as_default() as graph, tf.compat.v1.Session(graph=graph) as session:
        tf.graph_util.import_graph_def(graph_def, name="")
        return np.asarray(session.run(fetch, feeds))


def share_constants(graph_def: GraphDef, kept: Container[str]) -> GraphDef:
    """Return a copy without the constants that have an equal one."""
    instead = equal_constants(graph_def.node, kept)
    shared = GraphDef(versions=graph_def.versions)
    shared.node.extend(node for node in graph_def.node if node.name not in instead)
    for node in shared.node:
        inputs = take_instead(node.input, instead)
        del node.input[:]
        node.input.extend(inputs)
    return shared


def constants(graph_def: GraphDef) -> list[str]:
    """Return the names of the constants."""
    return [node.name for node in graph_def.node if node.op == "Const"]


def test_equal_constants_become_one_and_results_stay() -> None:
    with tf.Graph().as_default() as graph:
        x = tf.constant([1.0, 2.0], name="a") * tf.constant([1.0, 2.0], name="b")
        y = x + tf.cast(tf.constant([1, 2], name="whole"), tf.float32) + tf.constant([1.0, 3.0], name="other")
        with tf.control_dependencies([tf.constant(5, name="c").op, tf.constant(5, name="d").op]):
            tf.identity(y, name="y")
    shared = share_constants(graph.as_graph_def(), ())
    assert constants(shared) == ["a", "whole", "other", "c"]
    assert next(list(node.input) for node in shared.node if node.name == "y")[1:] == ["^c"]
    np.testing.assert_array_equal(run(shared, "y:0"), run(graph.as_graph_def(), "y:0"))


def test_fetched_constants_stay() -> None:
    with tf.Graph().as_default() as graph:
        tf.add(tf.constant(1.0, name="a"), tf.constant(1.0, name="b"), name="sum")
    shared = share_constants(graph.as_graph_def(), {"b"})
    assert constants(shared) == ["a", "b"]
    assert run(shared, "sum:0") == 2.0


def test_constants_of_branches_stay() -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        condition = v1.placeholder(tf.bool, [], name="condition")
        v1.disable_control_flow_v2()
        try:
            value = v1.cond(condition, lambda: tf.constant(7.0, name="x"), lambda: tf.constant(7.0, name="y") * 2.0)
        finally:
            v1.enable_control_flow_v2()
        tf.add(value, tf.constant(7.0, name="z"), name="result")
    shared = share_constants(graph.as_graph_def(), ())
    assert {"cond/x", "cond/y", "z"} <= {*constants(shared)}
    assert run(shared, "result:0", **{"condition:0": True}) == 14.0
    assert run(shared, "result:0", **{"condition:0": False}) == 21.0
