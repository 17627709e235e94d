"""The order of a graph's nodes."""

from __future__ import annotations

import pytest

from cerebras_tensorflow.graph.topological_order import CycleError, order_nodes
from tests.unit.graph.tables import table


def test_nodes_independent_of_the_batch_come_just_before_their_first_use() -> None:
    graph = table(w1="", w2="", batch="", a="batch w1", b="a w2")
    assert order_nodes(graph, sources=["batch"]) == ["batch", "w1", "a", "w2", "b"]


def test_early_nodes_come_right_after_their_inputs() -> None:
    graph = table(batch="", a="batch", b="a", c="b", update="a")
    assert order_nodes(graph, sources=["batch"]) == ["batch", "a", "b", "c", "update"]
    assert order_nodes(graph, sources=["batch"], early=["update"]) == ["batch", "a", "update", "b", "c"]


def test_extra_edges_count() -> None:
    assert order_nodes(table(a="", b=""), {"a": ["b"]}) == ["b", "a"]


@pytest.mark.parametrize("sources", [[], ["batch"]])
def test_a_cycle_is_an_error_that_names_its_nodes(sources: list[str]) -> None:
    graph = table(batch="", a="batch b", b="a")
    with pytest.raises(CycleError) as raised:
        order_nodes(graph, sources=sources)
    assert set(raised.value.nodes) == {"a", "b"}


def test_the_back_edge_of_a_loop_is_not_a_cycle() -> None:
    graph = table(x="", enter__Enter="x", merge__Merge="enter next", body="merge", next__NextIteration="body")
    assert order_nodes(graph).index("merge") < order_nodes(graph).index("next")


def test_an_exit_of_a_loop_comes_after_all_that_enters_it() -> None:
    graph = table(
        start="", first__Enter="start", merge__Merge="first next", test__LoopCond="merge", switch__Switch="merge test",
        out__Exit="switch:0", result="out", late="start", second__Enter="late", body="switch:1 second",
        next__NextIteration="body",
    )  # fmt: skip
    order = order_nodes(graph, sources=["start"], early=["result"])
    assert order.index("late") < order.index("second") < order.index("out") < order.index("result")
    with pytest.raises(CycleError):
        order_nodes(graph, {"late": ["result"]})
