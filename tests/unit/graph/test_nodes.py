"""The order of a graph's nodes."""

from __future__ import annotations

import pytest

from cerebras_tensorflow.errors import CompileError
from cerebras_tensorflow.graph.loops import loop_depths
from cerebras_tensorflow.graph.nodes import CycleError, GraphDef, NodeDef, NodeTable, order_nodes, prune


def table(**inputs: str) -> NodeTable:
    """Nodes by name, with their inputs in one string; `name__Op` gives the op."""
    graph_def = GraphDef()
    for word, needs in inputs.items():
        name, _, op = word.partition("__")
        graph_def.node.append(NodeDef(name=name, op=op or "NoOp", input=needs.split()))
    return NodeTable(graph_def)


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


def test_loop_depths_count_the_loops_around_an_output() -> None:
    graph = table(x="", e__Enter="x", inner__Enter="e", y="inner", out__Exit="y", z="out", end__Exit="z", after="end")
    assert loop_depths(graph) == {"e": 1, "inner": 2, "y": 2, "out": 1, "z": 1}


def test_pruning_keeps_inputs_of_the_roots_and_names_a_missing_root() -> None:
    graph = table(a="", b="a", c="a")
    assert [node.name for node in prune(graph.graph_def, ["b"]).node] == ["a", "b"]
    with pytest.raises(CompileError, match="asks for d"):
        prune(graph.graph_def, ["d"])
