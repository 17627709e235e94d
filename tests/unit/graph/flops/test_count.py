"""Products inside functions, branches and loops count as those outside of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from cerebras_tensorflow.graph.flops.count import flops_of_ops
from cerebras_tensorflow.graph.layers import find_network

v1 = tf.compat.v1
ONE = 2 * 4 * 8 * 8  # a product of (4, 8) and (8, 8)


def in_a_function(x: Any, w: Any) -> Any:
    inner = tf.function(lambda value: tf.matmul(value, w))
    return tf.function(lambda value: tf.tanh(inner(value)))(x)


def in_a_branch(x: Any, w: Any) -> Any:
    return tf.cond(tf.reduce_sum(x) > 0, lambda: tf.matmul(x, w), lambda: x)


def in_a_loop_that_never_runs(x: Any, w: Any) -> Any:
    return tf.while_loop(lambda i, _: i < 1, lambda i, z: (i + 2, tf.tanh(tf.matmul(z, w))), [1, x])[1]


def in_a_loop(x: Any, w: Any) -> Any:
    return tf.while_loop(lambda i, _: i < 7, lambda i, z: (i + 2, tf.tanh(tf.matmul(z, w))), [1, x])[1]


def in_a_loop_that_counts_down(x: Any, w: Any) -> Any:
    return tf.while_loop(lambda i, _: i >= 2, lambda i, z: (i - 2, tf.tanh(tf.matmul(z, w))), [7, x])[1]


def in_a_loop_with_the_limit_first(x: Any, w: Any) -> Any:
    return tf.while_loop(lambda i, _: tf.greater(7, i), lambda i, z: (i + 2, tf.tanh(tf.matmul(z, w))), [1, x])[1]


def in_a_loop_up_to_the_longest_sequence(x: Any, w: Any) -> Any:
    longest = tf.minimum(3, tf.cast(tf.reduce_max(x), tf.int32))
    return tf.while_loop(lambda i, _: i < longest, lambda i, z: (i + 1, tf.tanh(tf.matmul(z, w))), [0, x])[1]


def in_a_loop_down_from_a_minimum(x: Any, w: Any) -> Any:
    first = tf.minimum(3, tf.cast(tf.reduce_max(x), tf.int32))
    return tf.while_loop(lambda i, _: i > 0, lambda i, z: (i - 1, tf.tanh(tf.matmul(z, w))), [first, x])[1]


def in_a_scan(x: Any, w: Any) -> Any:
    return tf.scan(lambda z, _: tf.matmul(z, w), tf.zeros([5]), initializer=x)


CASES: dict[str, tuple[Callable[[Any, Any], Any], int]] = {
    "function": (in_a_function, 1),
    "branch": (in_a_branch, 1),
    "loop": (in_a_loop, 3),
    "loop that never runs": (in_a_loop_that_never_runs, 0),
    "loop that counts down": (in_a_loop_that_counts_down, 3),
    "loop with the limit first": (in_a_loop_with_the_limit_first, 3),
    "loop up to the longest sequence": (in_a_loop_up_to_the_longest_sequence, 3),
    "loop down from a minimum": (in_a_loop_down_from_a_minimum, 3),
    "scan": (in_a_scan, 5),
}

# Start, limit and step of loops whose length n does not tell, and for which a minimum with n is no bound.
UNKNOWN: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "up to n": (lambda n: 0, lambda n: n, lambda n: 1),
    "down to a minimum": (lambda n: 10, lambda n: tf.minimum(3, n), lambda n: -1),
    "up from a minimum": (lambda n: tf.minimum(3, n), lambda n: 7, lambda n: 1),
    "up in steps of a minimum": (lambda n: 0, lambda n: 7, lambda n: tf.minimum(3, n)),
}


@pytest.mark.parametrize("is_version_2", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_products_of_calls_count_as_often_as_they_run(case: str, is_version_2: bool) -> None:
    build, trips = CASES[case]
    was_version_2 = v1.control_flow_v2_enabled()
    (v1.enable_control_flow_v2 if is_version_2 else v1.disable_control_flow_v2)()
    try:
        with tf.Graph().as_default() as graph:
            x = v1.placeholder(tf.float32, [4, 8])
            w = v1.get_variable("layer/w", [8, 8], use_resource=True)
            result = build(x, w)
            forward = {operation.name for operation in graph.get_operations()}
            train_op = v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(result), var_list=[w])
            assert train_op is not None
    finally:
        (v1.enable_control_flow_v2 if was_version_2 else v1.disable_control_flow_v2)()
    counted = flops_of_ops(graph, forward)
    assert sum(counted.of_op.values()) == trips * ONE and counted.unknown_loops == ()
    names = [operation.name for operation in graph.get_operations()]
    total = sum(flops_of_ops(graph, set(names)).of_op.values())
    assert total == pytest.approx(trips * 3 * ONE, rel=0.34)  # the input needs no gradient in some of them
    network = find_network(graph, names, 4, 128, True)
    assert network.flops * 4 == total
    assert network.num_weights == 64


@pytest.mark.parametrize("is_version_2", [True, False])
def test_a_limit_that_the_loop_changes_is_unknown(is_version_2: bool) -> None:
    was_version_2 = v1.control_flow_v2_enabled()
    (v1.enable_control_flow_v2 if is_version_2 else v1.disable_control_flow_v2)()
    try:
        with tf.Graph().as_default() as graph:
            x, w = v1.placeholder(tf.float32, [4, 8]), v1.placeholder(tf.float32, [8, 8])
            tf.while_loop(lambda i, end, _: i < end, lambda i, end, z: (i + 2, end + 1, tf.matmul(z, w)), [0, 4, x])
    finally:
        (v1.enable_control_flow_v2 if was_version_2 else v1.disable_control_flow_v2)()
    counted = flops_of_ops(graph, {operation.name for operation in graph.get_operations()})
    assert sum(counted.of_op.values()) == ONE and len(counted.unknown_loops) == 1


@pytest.mark.parametrize("is_version_2", [True, False])
@pytest.mark.parametrize("case", UNKNOWN)
def test_a_loop_of_unknown_length_counts_once_and_is_named(case: str, is_version_2: bool) -> None:
    start_of, limit_of, step_of = UNKNOWN[case]
    was_version_2 = v1.control_flow_v2_enabled()
    (v1.enable_control_flow_v2 if is_version_2 else v1.disable_control_flow_v2)()
    try:
        with tf.Graph().as_default() as graph:
            x, n = v1.placeholder(tf.float32, [4, 8]), v1.placeholder(tf.int32, [])
            start, limit, step = start_of(n), limit_of(n), step_of(n)
            runs = tf.greater if case.startswith("down") else tf.less
            w = v1.get_variable("layer/w", [8, 8], use_resource=True)
            made = tf.while_loop(
                lambda i, _: runs(i, limit), lambda i, z: (i + step, tf.matmul(z, w)), [start, x], name="words"
            )
            forward = {operation.name for operation in graph.get_operations()}
            train_op = v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(made[1]), var_list=[w])
            assert train_op is not None
    finally:
        (v1.enable_control_flow_v2 if was_version_2 else v1.disable_control_flow_v2)()
    assert sum(flops_of_ops(graph, forward).of_op.values()) == ONE
    network = find_network(graph, [operation.name for operation in graph.get_operations()], 4, 128, True)
    (loop,) = network.unknown_loops
    assert loop.startswith("words")
