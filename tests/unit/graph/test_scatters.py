"""Additions to repeated rows have a fixed order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import function as defun

from cerebras_tensorflow.compiler.options import StreamingOptions
from cerebras_tensorflow.compiler.step import Step, compile_step
from cerebras_tensorflow.graph.cost import op_outputs
from cerebras_tensorflow.graph.exactness import find_inexact_ops
from cerebras_tensorflow.graph.nodes import GraphDef
from cerebras_tensorflow.graph.scatters import add_rows_in_order
from cerebras_tensorflow.graph.sums import fix_order_of_sums
from cerebras_tensorflow.runtime.session import ProgramSession

v1 = tf.compat.v1
ROWS, WIDTH, COUNT = 5, 8, 20_000


def graph_with(build: Any) -> GraphDef:
    """Return the graph of an update that is called "update", exact in all but that."""
    with tf.Graph().as_default() as graph:
        variable = tf.Variable(tf.zeros([ROWS, WIDTH]), name="variable")
        ids = v1.placeholder(tf.int32, [None], name="ids")
        updates = v1.placeholder(tf.float32, [None, WIDTH], name="updates")
        with tf.control_dependencies([variable.assign(tf.ones([ROWS, WIDTH]))]):
            update = build(variable, ids, updates)
        with tf.control_dependencies([update]):
            tf.identity(variable.read_value(), name="result")
    return add_rows_in_order(fix_order_of_sums(graph.as_graph_def())[0], op_outputs(graph))


def ops(graph_def: GraphDef) -> set[str]:
    bodies = [graph_def.node, *(function.node_def for function in graph_def.library.function)]
    return {node.op for nodes in bodies for node in nodes if "Scatter" in node.op or "SparseApply" in node.op}


@pytest.mark.parametrize("name", ["ResourceScatterAdd", "ResourceScatterSub"])
def test_many_runs_equal_additions_in_order(name: str) -> None:
    op = getattr(tf.raw_ops, name)
    graph_def = graph_with(lambda v, ids, updates: op(resource=v.handle, indices=ids, updates=updates))
    assert ops(graph_def) == {name.replace("Scatter", "ScatterNd")}
    random = np.random.default_rng(0)
    ids = random.integers(0, ROWS, COUNT).astype(np.int32)
    updates = (random.normal(size=(COUNT, WIDTH)) * 10.0 ** random.integers(-4, 4, (COUNT, WIDTH))).astype(np.float32)
    expected = np.ones([ROWS, WIDTH], np.float32)
    (np.add if name.endswith("Add") else np.subtract).at(expected, ids, updates)
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        tf.graph_util.import_graph_def(graph_def, name="")
        for _ in range(8):
            result = session.run("result:0", {"ids:0": ids, "updates:0": updates})
            np.testing.assert_array_equal(result, expected)


def added(variable: Any, ids: Any, updates: Any) -> Any:
    return tf.raw_ops.ResourceScatterAdd(resource=variable.handle, indices=ids, updates=updates)


def in_tf_function(variable: Any, ids: Any, updates: Any) -> Any:
    @tf.function
    def update(ids: Any, updates: Any) -> Any:
        added(variable, ids, updates)
        return tf.size(ids)

    return update(ids, updates)


def in_nested_loop(variable: Any, ids: Any, updates: Any) -> Any:
    """The updates in three parts, each added by a loop's body in a branch."""

    @tf.function
    def update(ids: Any, updates: Any) -> Any:
        for number in tf.range(3):
            if number >= 0:
                first, last = number * tf.size(ids) // 3, (number + 1) * tf.size(ids) // 3
                added(variable, ids[first:last], updates[first:last])
        return tf.size(ids)

    return update(ids, updates)


def in_defun(variable: Any, ids: Any, updates: Any) -> Any:
    @defun.Defun(tf.resource, tf.int32, tf.float32)
    def update(handle: Any, ids: Any, updates: Any) -> Any:
        with tf.control_dependencies([tf.raw_ops.ResourceScatterAdd(resource=handle, indices=ids, updates=updates)]):
            return tf.size(ids)

    return update(variable.handle, ids, updates)


def in_old_branch_of_a_loop(variable: Any, ids: Any, updates: Any) -> Any:
    v1.disable_control_flow_v2()
    try:

        def body(number: Any) -> Any:
            with tf.control_dependencies(
                [tf.cond(number >= 0, lambda: in_tf_function(variable, ids, updates), lambda: 0)]
            ):
                return number + 1

        return tf.identity(tf.while_loop(lambda number: number < 1, body, [0]))
    finally:
        v1.enable_control_flow_v2()


@pytest.mark.parametrize("build", [in_tf_function, in_nested_loop, in_defun, in_old_branch_of_a_loop])
def test_additions_in_functions_loops_and_branches_are_in_order(build: Any) -> None:
    graph_def = graph_with(build)
    assert ops(graph_def) == {"ResourceScatterNdAdd"}
    assert not find_inexact_ops(graph_def)
    random = np.random.default_rng(1)
    ids = random.integers(0, ROWS, COUNT).astype(np.int32)
    updates = (random.normal(size=(COUNT, WIDTH)) * 10.0 ** random.integers(-4, 4, (COUNT, WIDTH))).astype(np.float32)
    expected = np.ones([ROWS, WIDTH], np.float32)
    np.add.at(expected, ids, updates)
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        tf.graph_util.import_graph_def(graph_def, name="")
        for _ in range(3):
            np.testing.assert_array_equal(session.run("result:0", {"ids:0": ids, "updates:0": updates}), expected)


def test_a_scalar_is_added_in_a_function_too() -> None:
    graph_def = graph_with(lambda variable, ids, _: in_tf_function(variable, ids, tf.constant(0.1)))
    expected = np.ones([ROWS, WIDTH], np.float32)
    np.add.at(expected, [1, 1, 4], np.float32(0.1))
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        tf.graph_util.import_graph_def(graph_def, name="")
        np.testing.assert_array_equal(session.run("result:0", {"ids:0": [1, 1, 4]}), expected)


@pytest.mark.parametrize("is_function", [False, True])
@pytest.mark.parametrize(
    "indices",
    [lambda ids: tf.unique(ids).idx, lambda ids: tf.cast(tf.unique(tf.cast(ids, tf.float32) / 7.0).y, tf.int32)],
    ids=["places of unique values", "unique values, rounded"],
)
def test_indices_that_only_look_distinct_do_not_count_as_distinct(indices: Any, is_function: bool) -> None:
    def build(variable: Any, ids: Any, updates: Any) -> Any:
        @tf.function
        def update(ids: Any, updates: Any) -> Any:
            added(variable, indices(ids), updates)
            return tf.size(ids)

        return update(ids, updates) if is_function else added(variable, indices(ids), updates)

    graph_def = graph_with(build)
    assert ops(graph_def) == {"ResourceScatterNdAdd"}


def test_one_number_for_all_rows_is_added_in_order_too() -> None:
    graph_def = graph_with(
        lambda v, ids, _: tf.raw_ops.ResourceScatterAdd(resource=v.handle, indices=ids, updates=tf.constant(0.1))
    )
    assert ops(graph_def) == {"ResourceScatterNdAdd"}
    expected = np.ones([ROWS, WIDTH], np.float32)
    np.add.at(expected, [1, 1, 4], np.float32(0.1))
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        tf.graph_util.import_graph_def(graph_def, name="")
        np.testing.assert_array_equal(session.run("result:0", {"ids:0": [1, 1, 4]}), expected)


def test_updates_of_rows_that_are_known_to_differ_stay_as_they_are() -> None:
    def unique(variable: Any, ids: Any, updates: Any) -> Any:
        rows, places = tf.unique(ids)
        summed = tf.math.unsorted_segment_sum(updates, places, tf.size(rows))
        return tf.raw_ops.ResourceScatterAdd(resource=variable.handle, indices=rows, updates=summed)

    def constant(variable: Any, _ids: Any, updates: Any) -> Any:
        return tf.raw_ops.ResourceScatterAdd(resource=variable.handle, indices=[0, 3], updates=updates)

    for build in (unique, constant):
        graph_def = graph_with(build)
        assert ops(graph_def) == {"ResourceScatterAdd"}
        assert not find_inexact_ops(graph_def)


def test_plain_gradient_descent_on_an_embedding_is_in_order_and_other_optimizers_add_unique_rows() -> None:
    def trained(optimizer: Any) -> GraphDef:
        def build(variable: Any, ids: Any, updates: Any) -> Any:
            loss = tf.reduce_sum(tf.gather(variable, ids) * updates)
            return optimizer.minimize(loss, var_list=[variable])

        with tf.compat.v1.variable_scope("", reuse=tf.compat.v1.AUTO_REUSE):
            return graph_with(build)

    descent = trained(v1.train.GradientDescentOptimizer(0.1))
    assert ops(descent) == {"ResourceScatterNdAdd"}
    for graph_def in (descent, trained(v1.train.AdagradOptimizer(0.1)), trained(v1.train.AdamOptimizer(0.1))):
        assert not find_inexact_ops(graph_def)


def test_an_op_made_after_compiling_can_be_fetched_beside_a_function_with_an_addition() -> None:
    with tf.Graph().as_default() as graph:
        variable = v1.get_variable("variable", [ROWS, WIDTH], initializer=v1.zeros_initializer())
        ids, updates = v1.placeholder(tf.int32, [2], "ids"), tf.ones([2, WIDTH])
        size = in_tf_function(variable, ids, updates)
        step = Step(graph.as_graph_def(), [size.op.name], None, ["ids"], None, [variable.op.name])
        later = tf.identity(size + 1, name="later")
    session = ProgramSession(compile_step(step, "pipelined", StreamingOptions()), graph)
    session.load("variable", np.zeros([ROWS, WIDTH], np.float32))
    assert session.run([size, later], {ids: [1, 1]}) == [2, 3]
    session.close()
