"""Sums of several tensors have a fixed order, whatever other ops use their inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import function as defun

from cerebras_tensorflow.compiler.options import StreamingOptions
from cerebras_tensorflow.compiler.step import Step, compile_step
from cerebras_tensorflow.graph.nodes import GraphDef, NodeDef
from cerebras_tensorflow.graph.sums import fix_order_of_sums
from cerebras_tensorflow.runtime.session import ProgramSession

v1 = tf.compat.v1
X = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)


def parts(x: Any, count: int = 5) -> list[Any]:
    """Tensors whose sum depends on the order."""
    return [tf.sin(x * (number + 1.0), name=f"part_{number}") for number in range(count)]


def run(graph_def: GraphDef, fetches: Sequence[str], x: np.ndarray = X) -> list[Any]:
    """Return the values of tensors."""
    config = v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with tf.Graph().as_default() as graph, v1.Session(graph=graph, config=config) as session:
        tf.graph_util.import_graph_def(graph_def, name="")
        return list(session.run(list(fetches), {"x:0": x}))


def chain_sum(values: Iterable[np.ndarray]) -> np.ndarray:
    """What a chain of additions gives."""
    first, *rest = values
    total = first.copy()
    for value in rest:
        total = total + value
    return total


def all_nodes(graph_def: GraphDef) -> Iterator[NodeDef]:
    """Yield the nodes of a graph and of its functions."""
    yield from graph_def.node
    for function in graph_def.library.function:
        yield from function.node_def


def sums(graph_def: GraphDef) -> list[str]:
    """Return the names of the sums that are left."""
    return [node.name for node in all_nodes(graph_def) if node.op in ("AddN", "AccumulateNV2")]


def test_a_sum_does_not_depend_on_which_inputs_are_fetched_too() -> None:
    with tf.Graph().as_default() as graph:
        tf.add_n(parts(v1.placeholder(tf.float32, X.shape, name="x")), name="total")
    fixed, _ = fix_order_of_sums(graph.as_graph_def())
    names = [f"part_{number}:0" for number in range(5)]
    expected = chain_sum(run(fixed, names)).tobytes()
    choices = [list(held) for count in range(5) for held in combinations(names, count)]
    assert len({run(graph.as_graph_def(), ["total:0", *held])[0].tobytes() for held in choices}) > 1
    assert {run(fixed, ["total:0", *held])[0].tobytes() for held in choices} == {expected}


def test_the_last_addition_keeps_name_device_and_control_edges() -> None:
    with tf.Graph().as_default() as graph, tf.device("/CPU:0"):
        summed = parts(v1.placeholder(tf.float32, X.shape, name="x"), 3)
        with tf.control_dependencies([tf.no_op("before")]):
            tf.add_n(summed, name="total")
    graph_def = graph.as_graph_def()
    fixed, partial_of = fix_order_of_sums(graph_def)
    nodes = {node.name: node for node in fixed.node}
    assert nodes["total"].op == nodes["total/cs_sum_1"].op == "AddV2"
    assert list(nodes["total"].input) == ["total/cs_sum_1", "part_2", "^before"]
    assert list(nodes["total/cs_sum_1"].input) == ["part_0", "part_1"]
    assert nodes["total"].device == nodes["total/cs_sum_1"].device == "/device:CPU:0"
    assert partial_of == {"total/cs_sum_1": "total"}
    assert any(node.op == "AddN" for node in graph_def.node), "the given graph stays"


def test_a_partial_sum_comes_right_after_its_last_input() -> None:
    with tf.Graph().as_default() as graph:
        tf.add_n(parts(v1.placeholder(tf.float32, X.shape, name="x"), 4), name="total")
    order = [node.name for node in fix_order_of_sums(graph.as_graph_def())[0].node]
    assert order.index("total/cs_sum_1") == order.index("part_1") + 1
    assert order.index("total/cs_sum_2") == order.index("part_2") + 1
    assert order[-1] == "total"


def in_tf_function(x: Any) -> Any:
    return tf.function(lambda x: tf.add_n(parts(x)) * 1.0)(x)


def returned_by_tf_function(x: Any) -> Any:
    return tf.function(lambda x: tf.add_n(parts(x)))(x)


def in_defun(x: Any) -> Any:
    @defun.Defun(tf.float32)
    def total(x: Any) -> Any:
        return tf.add_n(parts(x))

    return total(x)


def in_nested_loop(x: Any) -> Any:
    def body(number: Any, total: Any) -> Any:
        return number + 1, tf.cond(number >= 0, lambda: tf.add_n([*parts(x), total * 0.0]), lambda: total)

    return tf.function(lambda x: tf.while_loop(lambda number, _: number < 2, body, [0, x])[1])(x)


def in_old_loop(x: Any) -> Any:
    v1.disable_control_flow_v2()
    try:
        return tf.while_loop(lambda number, _: number < 2, lambda number, _: (number + 1, tf.add_n(parts(x))), [0, x])[
            1
        ]
    finally:
        v1.enable_control_flow_v2()


def as_accumulate_n(x: Any) -> Any:
    return tf.raw_ops.AccumulateNV2(inputs=parts(x), shape=X.shape)


@pytest.mark.parametrize(
    "build",
    [in_tf_function, returned_by_tf_function, in_defun, in_nested_loop, in_old_loop, as_accumulate_n],
    ids=lambda build: build.__name__,
)
def test_sums_are_replaced_in_functions_and_loops(build: Any) -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, X.shape, name="x")
        parts(x)
        tf.identity(build(x), name="total")
    graph_def = graph.as_graph_def()
    assert sums(graph_def)
    fixed, _ = fix_order_of_sums(graph_def)
    assert not sums(fixed)
    *values, total = run(fixed, [*(f"part_{number}:0" for number in range(5)), "total:0"])
    np.testing.assert_array_equal(total, chain_sum(values))


def test_a_row_that_is_stitched_twice_has_its_last_value() -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, X.shape, name="x")
        rows = [np.arange(64, dtype=np.int32)] * 5
        tf.identity(tf.raw_ops.ParallelDynamicStitch(indices=rows, data=parts(x)), name="stitched")
    fixed, _ = fix_order_of_sums(graph.as_graph_def())
    assert {node.op for node in fixed.node} >= {"DynamicStitch"}
    last, stitched = run(fixed, ["part_4:0", "stitched:0"])
    np.testing.assert_array_equal(stitched, last)


def test_a_sum_of_tensor_lists_is_a_chain_of_sums_of_two() -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, X.shape, name="x")
        lists = [tf.raw_ops.TensorListFromTensor(tensor=part, element_shape=X.shape[1:]) for part in parts(x)]
        total = tf.raw_ops.AddN(inputs=lists)
        tf.raw_ops.TensorListStack(
            input_handle=total, element_shape=X.shape[1:], element_dtype=tf.float32, name="stacked"
        )
    fixed, _ = fix_order_of_sums(graph.as_graph_def())
    assert {node.attr["N"].i for node in fixed.node if node.op == "AddN"} == {2}
    *values, total = run(fixed, [*(f"part_{number}:0" for number in range(5)), "stacked:0"])
    np.testing.assert_array_equal(total, chain_sum(values))


def test_the_gradient_of_a_value_that_is_used_five_times_has_one_order() -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, X.shape, name="x")
        y = x * 2.0
        (gradient,) = tf.gradients(sum(tf.reduce_sum(part) for part in parts(y)), y)
        tf.identity(gradient, name="gradient")
    graph_def = graph.as_graph_def()
    summed = next(node for node in graph_def.node if node.op == "AddN")
    assert summed.attr["_class"].list.s
    fixed, _ = fix_order_of_sums(graph_def)
    assert not sums(fixed)
    additions = [node for node in fixed.node if node.name.startswith(summed.name)]
    assert [list(node.attr["_class"].list.s) for node in additions] == [list(summed.attr["_class"].list.s)] * 4
    values = run(fixed, [f"{name}:0" for name in summed.input])
    np.testing.assert_array_equal(run(fixed, ["gradient:0"])[0], chain_sum(values))


def test_an_op_made_after_compiling_can_be_fetched_beside_a_function_with_a_sum() -> None:
    with tf.Graph().as_default() as graph:
        x = v1.placeholder(tf.float32, X.shape, name="x")
        total = in_tf_function(x)
        step = Step(graph.as_graph_def(), [total.op.name], None, ["x"], None, [])
        later = tf.identity(tf.add_n([total, total, total]), name="later")
    session = ProgramSession(compile_step(step, "pipelined", StreamingOptions()), graph)
    values = session.run([total, later], {x: X})
    np.testing.assert_array_equal(values[1], values[0] + values[0] + values[0])
    session.close()
