"""How often the loops of a graph run, where constants and static shapes tell it.

A tf.while_loop compares a counter with a bound: `Less(counter, bound)`. map_fn, scan and dynamic_rnn join two such
comparisons by LogicalAnd.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.graph.cost import Output
from cerebras_tensorflow.graph.loops import find_loops
from cerebras_tensorflow.graph.nodes import Endpoint, NodeTable

_PASSING = ("Identity", "Enter", "Cast")
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Add": np.add, "AddV2": np.add, "FloorDiv": np.floor_divide, "Maximum": np.maximum, "Minimum": np.minimum,
    "Mul": np.multiply, "Sub": np.subtract,
}  # fmt: skip
_DEEPEST = 20  # ops between a bound and its constants


def trip_counts(
    table: NodeTable, outputs: Mapping[str, Sequence[Output]], frames: Mapping[str, tuple[str, ...]]
) -> dict[tuple[str, ...], int | None]:
    """Return the most iterations of each loop by its frame; None if only a run can tell.

    Args:
        table: The graph.
        outputs: Outputs of each op.
        frames: From `frames_of_nodes`.
    """
    counts = _Counts(table, outputs)
    return {frame: counts.trips(loop.condition) for frame, loop in find_loops(table, frames).items()}


class _Counts:
    def __init__(self, table: NodeTable, outputs: Mapping[str, Sequence[Output]]) -> None:
        self._table, self._outputs = table, outputs

    def trips(self, condition: str) -> int | None:
        """Return the most iterations that an op allows whose first input says whether a loop goes on."""
        return self._allowed(self._table.data_inputs(condition)[0])

    def _allowed(self, goes_on: Endpoint) -> int | None:
        op, inputs = self._table.nodes[goes_on.node].op, self._table.data_inputs(goes_on.node)
        if op == "LogicalAnd":
            known = [trips for trips in map(self._allowed, inputs) if trips is not None]
            return min(known, default=None)
        if op not in ("Less", "LessEqual"):
            return None
        bound, counter = self._value(inputs[1]), self._counter(inputs[0])
        if bound is None or counter is None or bound.size != 1:
            return None
        first, step = counter
        return max(0, math.ceil((bound.item() + (op == "LessEqual") - first) / step))

    def _counter(self, endpoint: Endpoint) -> tuple[int, int] | None:
        """Return the first value of a loop's counter and its positive step; None if it is no such counter."""
        merge = self._before(endpoint)
        if self._table.nodes[merge].op != "Merge":
            return None
        inputs = {self._table.nodes[one.node].op: one for one in self._table.data_inputs(merge)}
        if not {"Enter", "NextIteration"} <= set(inputs):
            return None
        first = self._value(inputs["Enter"])
        add = self._before(self._table.data_inputs(inputs["NextIteration"].node)[0])
        if first is None or first.size != 1 or self._table.nodes[add].op not in ("Add", "AddV2"):
            return None
        own: list[Endpoint] = []
        others: list[Endpoint] = []
        for one in self._table.data_inputs(add):
            (own if self._before(one) == merge else others).append(one)
        step = self._value(others[0]) if len(own) == len(others) == 1 else None
        if step is None or step.size != 1 or step.item() <= 0:
            return None
        return first.item(), step.item()

    def _before(self, endpoint: Endpoint) -> str:
        """Return the op behind ops that only pass a value on within a loop."""
        name = endpoint.node
        while self._table.nodes[name].op in ("Identity", "Switch"):
            name = self._table.data_inputs(name)[0].node
        return name

    def _value(self, endpoint: Endpoint, depth: int = 0) -> Any:
        """Return the value of an output as an array; None if it is unknown before a run."""
        node, inputs = self._table.nodes[endpoint.node], self._table.data_inputs(endpoint.node)
        if node.op == "Const":
            return tf.make_ndarray(node.attr["value"].tensor)
        if depth == _DEEPEST:
            return None
        if node.op == "Shape":
            made = self._outputs.get(inputs[0].node, ())
            shape = made[inputs[0].port].shape if inputs[0].port < len(made) else None
            return None if shape is None else np.asarray(shape, np.int64)
        if node.op not in (*_PASSING, *_FUNCTIONS, "StridedSlice"):
            return None
        values = [self._value(one, depth + 1) for one in inputs]
        if any(value is None for value in values):
            return None
        if node.op == "StridedSlice":
            is_element = values[0].ndim == 1 and node.attr["shrink_axis_mask"].i == 1 and values[1].size == 1
            return values[0][values[1].item()] if is_element else None
        return _FUNCTIONS[node.op](*values) if node.op in _FUNCTIONS else values[0]
