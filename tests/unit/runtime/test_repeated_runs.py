"""A repeated run returns and raises what Session.run does."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cerebras_tensorflow.runtime.repeated_runs import RepeatedRuns

v1 = tf.compat.v1
Pair = namedtuple("Pair", "one other")


class Graph:
    """A session on a small graph, and feeds for it."""

    def __init__(self, session: Any) -> None:
        self.session = session
        numbers, words = v1.placeholder(tf.float32, [None], "numbers"), v1.placeholder(tf.string, [None], "words")
        self.feeds = {"numbers:0": [1, 2], "words:0": np.array(["a", "bc"], object)}
        self.tensors = [2 * numbers, tf.reduce_sum(numbers), tf.strings.join([words, words]), words]
        self.total = v1.get_variable("total", [], initializer=v1.zeros_initializer(), use_resource=True)
        self.add = self.total.assign_add(tf.reduce_sum(numbers)).op
        session.run(v1.global_variables_initializer())


@pytest.fixture
def graph() -> Iterator[Graph]:
    with tf.Graph().as_default(), v1.Session() as session:
        yield Graph(session)


def test_values_types_and_structures_are_those_of_session_run(graph: Graph) -> None:
    runs = RepeatedRuns(graph.session)
    double, total, joined, fed = graph.tensors
    structures = (total, {"a": [double, total.op], "b": Pair(joined, (double, double))}, [joined], [total, fed], [])
    for fetches in structures:
        expected = graph.session.run(fetches, graph.feeds)
        for _ in range(2):
            result = runs.run(fetches, graph.feeds)
            tf.nest.assert_same_structure(result, expected)
            for one, other in zip(tf.nest.flatten(result), tf.nest.flatten(expected), strict=True):
                assert type(one) is type(other)
                assert getattr(one, "dtype", None) == getattr(other, "dtype", None)
                np.testing.assert_array_equal(one, other)


def test_each_kind_of_run_is_prepared_once(graph: Graph) -> None:
    prepared: list[str] = []
    runs = RepeatedRuns(graph.session, lambda: prepared.append("kind"))
    total = graph.tensors[1]
    for fetches in (total, total, [total, graph.add], total):
        runs.run(fetches, graph.feeds)
    assert len(prepared) == 2


def test_ops_run_once_in_each_call_also_after_the_graph_has_grown(graph: Graph) -> None:
    runs = RepeatedRuns(graph.session)
    runs.run([graph.add, graph.add], graph.feeds)
    more = graph.total + 1
    runs.run([graph.add], graph.feeds)
    assert runs.run(more, {}) == 7


def test_errors_are_those_of_session_run(graph: Graph) -> None:
    wrong = tf.debugging.check_numerics(graph.tensors[0] / 0.0, "no number")
    with pytest.raises(tf.errors.InvalidArgumentError, match="no number") as caught:
        RepeatedRuns(graph.session).run(wrong, graph.feeds)
    assert caught.value.op is not None


def test_a_feed_of_a_wrong_shape_is_refused_as_session_run_does(graph: Graph) -> None:
    runs, rate = RepeatedRuns(graph.session), v1.placeholder(tf.float32, [], "rate")
    double = 2 * rate
    assert runs.run(double, {"rate:0": 3}) == 6
    for run in (graph.session.run, runs.run):
        with pytest.raises(ValueError, match=r"Cannot feed value of shape \(2,\) for Tensor .*rate:0"):
            run(double, {"rate:0": [1, 2]})


@pytest.mark.parametrize("data", [3, 3.0, "a", [1.0, 2.0], None])
def test_a_tensor_of_a_branch_that_was_not_taken_is_an_error_as_in_session_run(graph: Graph, data: Any) -> None:
    is_taken = v1.placeholder(tf.bool, [])
    value = graph.tensors[0] if data is None else tf.constant(data)  # the first one may be empty
    taken = tf.raw_ops.Switch(data=value, pred=is_taken).output_true
    runs = RepeatedRuns(graph.session)
    yes, no = ({is_taken.name: answer, **graph.feeds} for answer in (True, False))
    assert np.array_equal(runs.run(taken, yes), graph.session.run(taken, yes))
    for run in (graph.session.run, runs.run):
        with pytest.raises(tf.errors.InvalidArgumentError, match="does not have value"):
            run(taken, no)
