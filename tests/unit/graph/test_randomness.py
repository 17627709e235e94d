"""Random draws are a function of the seeds, the op, the step, and the path to the op through loops and calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import function as defun

from cerebras_tensorflow.graph.nodes import GraphDef
from cerebras_tensorflow.graph.random_ops import is_replaceable
from cerebras_tensorflow.graph.randomness import counter_feed, make_stateless

v1 = tf.compat.v1
raw = tf.raw_ops
SEEDS = {"seed": 3, "seed2": 5}
LIMITS = [2.0, 3.0, 4.0]


def bounding_box(op: Callable[..., Any], **covered: Any) -> Any:
    return op(image_size=[640, 480, 3], bounding_boxes=[[[0.1, 0.2, 0.9, 0.8]]], **SEEDS, **covered)[0]


OPS: dict[str, Callable[[], Any]] = {
    "RandomUniform": lambda: raw.RandomUniform(shape=[3, 5], dtype=tf.float32, **SEEDS),
    "RandomStandardNormal": lambda: raw.RandomStandardNormal(shape=[3, 5], dtype=tf.float32, **SEEDS),
    "TruncatedNormal": lambda: raw.TruncatedNormal(shape=[3, 5], dtype=tf.float64, **SEEDS),
    "RandomUniformInt": lambda: raw.RandomUniformInt(shape=[3, 5], minval=0, maxval=10**9, **SEEDS),
    "RandomGamma": lambda: raw.RandomGamma(shape=[3, 5], alpha=[0.5, 2.0], **SEEDS),
    "RandomPoissonV2": lambda: raw.RandomPoissonV2(shape=[8, 5], rate=[50.0, 200.0], **SEEDS),
    "Multinomial": lambda: raw.Multinomial(logits=tf.zeros([3, 99]), num_samples=7, **SEEDS),
    "RandomShuffle": lambda: raw.RandomShuffle(value=tf.reshape(tf.range(60), [30, 2]), **SEEDS),
    "ParameterizedTruncatedNormal": lambda: raw.ParameterizedTruncatedNormal(
        shape=[3, 5], means=1.0, stdevs=1.0, minvals=-1.0, maxvals=LIMITS, **SEEDS
    ),
    "SampleDistortedBoundingBox": lambda: bounding_box(raw.SampleDistortedBoundingBox),
    "SampleDistortedBoundingBoxV2": lambda: bounding_box(raw.SampleDistortedBoundingBoxV2, min_object_covered=0.1),
}


def uniform(seed: int | None = 11) -> Any:
    return tf.random.uniform([4], seed=seed)


def in_tf_function() -> Any:
    return tf.function(uniform)()


def in_two_calls_of_one_function() -> Any:
    function = tf.function(uniform)
    return tf.stack([function(), function()])


def in_nested_calls() -> Any:
    inner = tf.function(uniform)
    outer = tf.function(lambda: tf.stack([inner(), inner()]))
    return tf.stack([outer(), outer()])


def in_defun() -> Any:
    @defun.Defun(tf.float32)
    def noisy(x: Any) -> Any:
        return x + uniform()

    return tf.stack([noisy(tf.zeros([4])), noisy(tf.zeros([4]))])


def in_both_branches() -> Any:
    return tf.function(lambda: tf.cond(uniform()[0] < 2, uniform, lambda: uniform() + 1))()


def in_a_case() -> Any:
    return tf.function(lambda: tf.switch_case(tf.constant(1), [lambda: tf.zeros([4]), uniform]))()


def scanned() -> Any:
    """Draws in a loop, one row an iteration."""
    return tf.map_fn(lambda _: uniform(), tf.zeros([5]), fn_output_signature=tf.float32)


def in_a_functional_loop() -> Any:
    return tf.function(scanned)()


def in_a_functional_loop_in_a_loop() -> Any:
    return tf.function(lambda: tf.map_fn(lambda _: scanned(), tf.zeros([3]), fn_output_signature=tf.float32))()


def in_an_old_loop() -> Any:
    return with_old_control_flow(scanned)


def in_an_old_loop_in_a_loop() -> Any:
    def nested() -> Any:
        return tf.map_fn(lambda _: scanned(), tf.zeros([3]), fn_output_signature=tf.float32)

    return with_old_control_flow(nested)


def in_a_call_in_an_old_loop() -> Any:
    noisy = tf.function(uniform)
    return with_old_control_flow(lambda: tf.map_fn(lambda _: noisy(), tf.zeros([5]), fn_output_signature=tf.float32))


def in_an_old_loop_in_a_branch() -> Any:
    def branches() -> Any:
        taken = tf.cond(tf.constant(1.0) > 0, scanned, lambda: tf.zeros([5, 4]))
        return taken + tf.cond(tf.constant(1.0) < 0, scanned, lambda: tf.zeros([5, 4]))

    return with_old_control_flow(branches)


def in_an_old_loop_s_condition() -> Any:
    def loop() -> Any:
        return tf.while_loop(
            lambda n, _: (n < 5) & (uniform()[0] < 2), lambda n, x: (n + 1, x + uniform()), [0, tf.zeros([4])]
        )

    return with_old_control_flow(loop)[1]


def in_an_old_loop_in_a_defun() -> Any:
    @defun.Defun(tf.float32)
    def noisy(x: Any) -> Any:
        return x + scanned()

    return with_old_control_flow(lambda: noisy(tf.zeros([5, 4])))


def with_old_control_flow(build: Callable[[], Any]) -> Any:
    v1.disable_control_flow_v2()
    try:
        return build()
    finally:
        v1.enable_control_flow_v2()


PLACES = [
    uniform, in_tf_function, in_two_calls_of_one_function, in_nested_calls, in_defun, in_both_branches, in_a_case,
    in_a_functional_loop, in_a_functional_loop_in_a_loop, in_an_old_loop, in_an_old_loop_in_a_loop,
    in_a_call_in_an_old_loop, in_an_old_loop_in_a_branch, in_an_old_loop_s_condition, in_an_old_loop_in_a_defun,
]  # fmt: skip
MADE_OF_ROWS = {
    "in_two_calls_of_one_function", "in_nested_calls", "in_defun", "in_a_functional_loop",
    "in_a_functional_loop_in_a_loop", "in_an_old_loop", "in_an_old_loop_in_a_loop", "in_a_call_in_an_old_loop",
    "in_an_old_loop_in_a_branch", "in_an_old_loop_in_a_defun",
}  # fmt: skip


def graph_of(build: Callable[[], Any]) -> GraphDef:
    """Return a graph whose node "drawn" has what `build` returns."""
    with tf.Graph().as_default() as graph:
        v1.set_random_seed(7)
        tf.identity(build(), name="drawn")
    return graph.as_graph_def()


def draw(graph_def: GraphDef, steps: list[int], entropy: int = 0) -> list[np.ndarray]:
    """Return what a fresh session draws in some steps."""
    config = v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with tf.Graph().as_default() as graph, v1.Session(graph=graph, config=config) as session:
        tf.graph_util.import_graph_def(graph_def, name="")
        return [session.run("drawn:0", counter_feed(step, 0, entropy)) for step in steps]


def stateful_ops(graph_def: GraphDef) -> Iterator[str]:
    """Yield the random ops with state that a graph's nodes reach."""
    from cerebras_tensorflow.graph.function_calls import reachable_functions

    for nodes in (graph_def.node, *(function.node_def for function in reachable_functions(graph_def).values())):
        yield from (node.op for node in nodes if is_replaceable(node))


def assert_is_a_function_of_the_step(graph_def: GraphDef) -> list[np.ndarray]:
    """A session that ran three steps draws in the fourth what one draws that begins there."""
    stateless = make_stateless(graph_def)
    assert not list(stateful_ops(stateless))
    drawn = draw(stateless, [0, 1, 2, 3, 2])
    (resumed,) = draw(stateless, [3])
    np.testing.assert_array_equal(drawn[3], resumed)
    np.testing.assert_array_equal(drawn[2], drawn[4])
    assert len({values.tobytes() for values in drawn[:4]}) == 4
    return drawn


@pytest.mark.parametrize("name", OPS)
def test_each_op_is_a_function_of_the_step(name: str) -> None:
    graph_def = graph_of(OPS[name])
    assert list(stateful_ops(graph_def)) == [name]
    (original,) = draw_stateful(graph_def)
    drawn = assert_is_a_function_of_the_step(graph_def)
    assert (drawn[0].shape, drawn[0].dtype) == (original.shape, original.dtype)


def draw_stateful(graph_def: GraphDef) -> list[np.ndarray]:
    """Return what TensorFlow's unchanged graph draws."""
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        tf.graph_util.import_graph_def(graph_def, name="")
        return [session.run("drawn:0")]


@pytest.mark.parametrize("build", PLACES, ids=lambda build: build.__name__)
def test_each_place_is_a_function_of_the_step(build: Callable[[], Any]) -> None:
    graph_def = graph_of(build)
    assert list(stateful_ops(graph_def))
    drawn = assert_is_a_function_of_the_step(graph_def)[0]
    if build.__name__ in MADE_OF_ROWS:
        rows = drawn.reshape(-1, 4)
        assert len({row.tobytes() for row in rows}) == len(rows) > 1, "each iteration and each call draws its own"


@pytest.mark.parametrize("name", OPS)
def test_each_op_in_a_function_and_in_loops_is_a_function_of_the_step(name: str) -> None:
    def build() -> Any:
        def body(_: Any) -> Any:
            return tf.cast(OPS[name](), tf.float64)

        def loop() -> Any:
            return tf.map_fn(body, tf.zeros([3]), fn_output_signature=tf.float64)

        return tf.stack([with_old_control_flow(loop), tf.function(loop)()])

    drawn = assert_is_a_function_of_the_step(graph_of(build))[0]
    rows = drawn.reshape(6, -1)
    assert len({row.tobytes() for row in rows}) == 6


@pytest.mark.parametrize("build", [uniform, in_nested_calls, in_a_functional_loop_in_a_loop, in_an_old_loop_in_a_loop])
def test_ops_without_a_seed_differ_between_runs_and_repeat_within_one(build: Callable[[], Any]) -> None:
    graph_def = graph_of(build)
    for nodes in (graph_def.node, *(function.node_def for function in graph_def.library.function)):
        for node in nodes:
            if is_replaceable(node):
                node.attr["seed"].i = node.attr["seed2"].i = 0
    stateless = make_stateless(graph_def)
    first, other_run = draw(stateless, [4], entropy=1)[0], draw(stateless, [4], entropy=2)[0]
    assert not np.array_equal(first, other_run)
    np.testing.assert_array_equal(first, draw(stateless, [4], entropy=1)[0])


def test_draws_do_not_depend_on_generated_function_names() -> None:
    one = assert_is_a_function_of_the_step(graph_of(in_nested_calls))[0]
    other = assert_is_a_function_of_the_step(graph_of(in_nested_calls))[0]
    np.testing.assert_array_equal(one, other)


def test_distributions_are_those_of_the_ops() -> None:
    def build() -> Any:
        gamma = tf.random.gamma([4000], [0.5, 3.0], seed=1)
        poisson = v1.random_poisson([2.0, 30.0], [4000], dtype=tf.float32, seed=2)
        chosen = tf.cast(v1.multinomial(tf.math.log([[0.1, 0.2, 0.7]]), 4000, seed=3)[0], tf.float32)
        normal = raw.ParameterizedTruncatedNormal(
            shape=[2, 4000], means=[0.0, 5.0], stdevs=[1.0, 2.0], minvals=[-1.0, 4.0], maxvals=[1.0, 9.0], seed=4
        )
        means = [tf.reduce_mean(gamma, 0), tf.reduce_mean(poisson, 0), [tf.reduce_mean(chosen)]]
        return tf.concat([*means, tf.reduce_min(normal, 1), tf.reduce_max(normal, 1)], 0)

    (drawn,) = draw(make_stateless(graph_of(build)), [0])
    # Tolerance: four standard errors for means of 4000 draws; limits are nearly reached by so many draws.
    np.testing.assert_allclose(drawn[:5], [0.5, 3.0, 2.0, 30.0, 1.6], atol=0.35)
    np.testing.assert_allclose(drawn[5:], [-1.0, 4.0, 1.0, 9.0], atol=0.3)


def test_a_shuffle_keeps_all_rows() -> None:
    (drawn,) = draw(make_stateless(graph_of(OPS["RandomShuffle"])), [0])
    np.testing.assert_array_equal(drawn[np.argsort(drawn[:, 0])], np.arange(60).reshape(30, 2))
