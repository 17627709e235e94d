"""Ops that cannot be made exact get a warning with advice; all others get none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.framework import function as defun

from cerebras_tensorflow.graph.exactness import find_inexact_ops
from cerebras_tensorflow.graph.randomness import make_stateless
from cerebras_tensorflow.graph.sums import fix_order_of_sums

v1 = tf.compat.v1
raw = tf.raw_ops


def sampled() -> Any:
    return tf.random.log_uniform_candidate_sampler([[1]], 1, 4, True, 50, seed=3)[0]


def fractional_pool(seed: int) -> Any:
    return tf.nn.fractional_max_pool(tf.zeros([1, 9, 9, 1]), 1.5, seed=seed)[0]


def gradient_of_a_defun() -> Any:
    @defun.Defun(tf.float32)
    def noisy(x: Any) -> Any:
        return x * tf.random.uniform([])

    x = tf.ones([])
    return tf.gradients(noisy(x), x)[0]


def two_draws_of_a_generator() -> Any:
    generator = tf.random.Generator.from_seed(1)
    return generator.normal([]) + generator.normal([])


def products_of_rows() -> Any:
    variable = tf.Variable([[1.0]] * 4)
    return raw.ResourceScatterMul(resource=variable.handle, indices=v1.placeholder(tf.int32, [None]), updates=[[2.0]])


def sparse_adagrad() -> Any:
    weight, slot = tf.Variable([[1.0]] * 4), tf.Variable([[1.0]] * 4)
    ids = v1.placeholder(tf.int32, [None])
    return raw.ResourceSparseApplyAdagrad(var=weight.handle, accum=slot.handle, lr=0.1, grad=[[1.0]], indices=ids)


def next_of_an_iterator() -> Any:
    return v1.data.make_one_shot_iterator(tf.data.Dataset.range(9)).get_next()


def weighted_count(kind: Any) -> Callable[[], Any]:
    return lambda: raw.DenseBincount(input=[1, 1], size=2, weights=tf.ones([2], kind))


INEXACT: dict[str, tuple[Callable[[], Any], str, str]] = {
    "LogUniformCandidateSampler": (sampled, "after a resume", "sampled_values"),
    "FractionalMaxPool": (lambda: fractional_pool(0), "after a resume", "give it a seed"),
    "SymbolicGradient": (gradient_of_a_defun, "at run time", "tf.function"),
    "ResourceScatterMul": (products_of_rows, "may repeat", "unique"),
    "ResourceSparseApplyAdagrad": (sparse_adagrad, "may repeat", "unique"),
    "DenseBincount": (weighted_count(tf.float32), "timing-dependent", "unsorted_segment_sum"),
    "Timestamp": (tf.timestamp, "the clock", "the global step"),
    "FIFOQueueV2": (lambda: v1.FIFOQueue(9, [tf.int32]).dequeue(), "empty after a resume", "a variable"),
    "OneShotIterator": (next_of_an_iterator, "first element after a resume", "input_fn"),
    "NonDeterministicInts": (lambda: raw.NonDeterministicInts(shape=[2]), "in each run", "tf.random.uniform"),
}


def warnings(build: Callable[[], Any]) -> list[Any]:
    with tf.Graph().as_default() as graph:
        build()
    return find_inexact_ops(make_stateless(fix_order_of_sums(graph.as_graph_def())[0]))


@pytest.mark.parametrize("op", INEXACT)
def test_an_op_that_cannot_be_exact_is_named_once_with_advice(op: str) -> None:
    build, reason, advice = INEXACT[op]
    (warning,) = [warning for warning in warnings(build) if warning.op == op]
    assert op in warning.text and warning.name in warning.text
    assert reason in warning.text and advice in warning.text


def test_an_op_in_a_function_is_named_with_the_call() -> None:
    (warning,) = warnings(lambda: tf.function(sampled)())
    assert warning.name.endswith("/LogUniformCandidateSampler")
    assert warning.ops == ("PartitionedCall",) or warning.ops == ("StatefulPartitionedCall",)


@pytest.mark.parametrize(
    "build",
    [weighted_count(tf.int32), two_draws_of_a_generator, lambda: fractional_pool(5), lambda: tf.random.gamma([2], 1.0)],
)
def test_an_exact_op_is_not_named(build: Callable[[], Any]) -> None:
    assert not warnings(build)
