"""Floating-point operations of each op, with those of the functions, branches and loops that it calls."""

from __future__ import annotations

import math
from collections.abc import Container
from typing import Any

import tensorflow as tf

from cerebras_tensorflow.graph.flops.functions import Functions
from cerebras_tensorflow.graph.flops.products import product_flops
from cerebras_tensorflow.graph.flops.trips import trips_of_call, trips_of_frame
from cerebras_tensorflow.graph.function_calls import LOOPS
from cerebras_tensorflow.graph.loops import find_loops, frames_of_nodes
from cerebras_tensorflow.graph.nodes import NodeTable
from cerebras_tensorflow.graph.scopes import forward_op, is_gradient


def flops_of_ops(graph: tf.Graph, names: Container[str]) -> dict[str, int]:
    """Return multiply-adds x 2 of the matrix products and convolutions in each op; ops without any are left out.

    Other ops are left out: in the models we target they take a few percent. A call counts what its function does, a
    choice its largest branch, and a loop its body as often as it runs, or once if that is unknown.

    Args:
        graph: The graph.
        names: The ops to count.
    """
    trips, functions = _Trips(graph), Functions(graph)
    counts: dict[str, int] = {}
    for operation in graph.get_operations():
        if operation.name not in names:
            continue
        own = product_flops(operation)
        count = (own or _call_flops(operation, functions, counts)) * trips.of(operation.name)
        if count:
            counts[operation.name] = count
    return counts


def _call_flops(operation: Any, functions: Functions, counts: dict[str, int]) -> int:
    """Return the operations of a call.

    The gradient of a loop takes values from lists, whose shapes are unknown; it has two products for each of the loop.
    """
    each = [sum(flops_of_ops(body.graph, _All()).values()) for body in functions.bodies_of(operation)]
    if operation.type not in LOOPS:
        return max(each, default=0)
    own = sum(each) * trips_of_call(operation, functions) if any(each) else 0
    return max(own, 2 * counts.get(forward_op(operation.name), 0))


class _All:
    """Contains every name."""

    def __contains__(self, name: object) -> bool:
        return True


class _Trips:
    """How often each op of a graph runs, if it is in loops of Enter and Exit.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: tf.Graph) -> None:
        self._frames: dict[str, tuple[str, ...]] = {}
        self._of_frame: dict[str, int | None] = {}
        if not any(operation.type == "LoopCond" for operation in graph.get_operations()):
            return
        table = NodeTable(graph.as_graph_def())
        self._frames = frames_of_nodes(table)
        for frame, loop in find_loops(table, self._frames).items():
            self._of_frame[frame[-1]] = trips_of_frame(graph.get_operation_by_name(loop.condition))

    def of(self, name: str) -> int:
        """Return how often an op runs."""
        return math.prod(self._trips(frame) for frame in self._frames.get(name, ()))

    def _trips(self, frame: str) -> int:
        """Return the trips of a loop. The gradient of a loop has its name, in a scope, and runs as often."""
        count = self._of_frame.get(frame)
        scope, _, rest = frame.partition("/")
        if count is None and rest and is_gradient(f"{scope}/op"):
            return self._trips(rest)
        return 1 if count is None else count
