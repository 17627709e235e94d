"""The nodes of a graph: loops around them, and pruning."""

from __future__ import annotations

import pytest

from cerebras_tensorflow.errors import CompileError
from cerebras_tensorflow.graph.loops import loop_depths
from cerebras_tensorflow.graph.nodes import prune
from tests.unit.graph.tables import table


def test_loop_depths_count_the_loops_around_an_output() -> None:
    graph = table(x="", e__Enter="x", inner__Enter="e", y="inner", out__Exit="y", z="out", end__Exit="z", after="end")
    assert loop_depths(graph) == {"e": 1, "inner": 2, "y": 2, "out": 1, "z": 1}


def test_pruning_keeps_inputs_of_the_roots_and_names_a_missing_root() -> None:
    graph = table(a="", b="a", c="a")
    assert [node.name for node in prune(graph.graph_def, ["b"]).node] == ["a", "b"]
    with pytest.raises(CompileError, match="asks for d"):
        prune(graph.graph_def, ["d"])
