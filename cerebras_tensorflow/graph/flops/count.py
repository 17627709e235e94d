"""Floating-point operations of each op, with those of the functions, branches and loops that it calls."""

from __future__ import annotations

import math
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from cerebras_tensorflow.graph.flops.functions import Functions
from cerebras_tensorflow.graph.flops.products import product_flops
from cerebras_tensorflow.graph.flops.trips import trips_of_call, trips_of_frame
from cerebras_tensorflow.graph.function_calls import LOOPS
from cerebras_tensorflow.graph.loops import find_loops, frames_of_nodes
from cerebras_tensorflow.graph.nodes import NodeTable
from cerebras_tensorflow.graph.scopes import forward_op, is_gradient


@dataclass(frozen=True)
class Flops:
    """Floating-point operations.

    Attributes:
        of_op: Name of an op -> its multiply-adds x 2; ops without any are left out.
        unknown_loops: Names of the loops with products whose length is unknown. They count once.
    """

    of_op: dict[str, int]
    unknown_loops: tuple[str, ...]


def flops_of_ops(graph: tf.Graph, names: Container[str]) -> Flops:
    """Return the floating-point operations of matrix products and convolutions.

    Other ops are left out: in the models we target they take a few percent. A call counts what its function does, a
    choice its largest branch, and a loop its body as often as it runs at most, or once if that is unknown.

    Args:
        graph: The graph.
        names: The ops to count.
    """
    trips, functions = _Trips(graph), Functions(graph)
    counts: dict[str, int] = {}
    unknown: dict[str, None] = {}
    for operation in graph.get_operations():
        if operation.name not in names:
            continue
        own = product_flops(operation)
        count, loops_inside = (own, []) if own else _call_flops(operation, functions, counts)
        if count:
            counts[operation.name] = count * trips.of(operation.name)
            unknown.update(dict.fromkeys((*loops_inside, *trips.unknown_around(operation.name))))
    loops = tuple(name for name in unknown if not is_gradient(name))  # the gradient of a loop is as long as the loop
    return Flops({name: count for name, count in counts.items() if count}, loops)


def _call_flops(operation: Any, functions: Functions, counts: dict[str, int]) -> tuple[int, list[str]]:
    """Return the operations of a call, and the names of the loops of unknown length in it.

    The gradient of a loop takes values from lists, whose shapes are unknown; it has two products for each of the loop.
    """
    bodies = [flops_of_ops(body.graph, _All()) for body in functions.bodies_of(operation)]
    each = [sum(body.of_op.values()) for body in bodies]
    unknown = [f"{operation.name}/{name}" for body in bodies for name in body.unknown_loops]
    if operation.type not in LOOPS:
        return max(each, default=0), unknown
    trips = trips_of_call(operation, functions) if any(each) else 0
    if trips is None:
        unknown.append(operation.name)
        trips = 1
    return max(sum(each) * trips, 2 * counts.get(forward_op(operation.name), 0)), unknown


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

    def unknown_around(self, name: str) -> list[str]:
        """Return the loops of unknown length that an op is in."""
        return [frame for frame in self._frames.get(name, ()) if self._of_frame.get(frame, 1) is None]

    def _trips(self, frame: str) -> int:
        """Return the trips of a loop. The gradient of a loop has its name, in a scope, and runs as often."""
        count = self._of_frame.get(frame)
        scope, _, rest = frame.partition("/")
        if count is None and rest and is_gradient(f"{scope}/op"):
            return self._trips(rest)
        return 1 if count is None else count
