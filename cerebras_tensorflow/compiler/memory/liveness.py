"""Liveness: the buffers that a step's ops make, their uses in the step's order, and the memory that they take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cerebras_tensorflow.graph.conditionals import Deadness
from cerebras_tensorflow.graph.cost import Output
from cerebras_tensorflow.graph.loops import loop_depths
from cerebras_tensorflow.graph.nodes import Endpoint, NodeTable

# Ops that return the buffer of their first input, at most with another shape.
ALIASES = frozenset({"Identity", "Reshape", "ExpandDims", "Squeeze", "StopGradient", "PreventGradient", "Snapshot"})
# Ops of branches and loops also pass a buffer on, but not in every step.
_CONDITIONAL = frozenset({"Switch", "Merge", "Enter", "Exit", "NextIteration", "LoopCond"})
# Ops whose output is counted elsewhere: as part of the session, the batch or the store.
OUTSIDE = frozenset({"ReadVariableOp", "VarHandleOp", "Const", "Placeholder", "PyFunc"})


@dataclass(frozen=True)
class Use:
    """An op that takes a value.

    Attributes:
        position: Of the op in the step's order.
        user: The op.
        endpoint: The output that the op takes: the value's own, or that of an alias such as Reshape.
    """

    position: int
    user: str
    endpoint: Endpoint


@dataclass(frozen=True)
class Value:
    """One buffer, or buffers of equal size that a loop makes and that live as long.

    Attributes:
        endpoint: The output that made it.
        num_bytes: Its size; of several buffers, the sum.
        made: Position of the op that made it.
        uses: In the step's order, without ops that only pass the buffer on.
        is_conditional: Whether a branch or a loop makes or takes it. Then it may not exist at all, or more than once.
        buffers: Number of the buffers.
    """

    endpoint: Endpoint
    num_bytes: int
    made: int
    uses: tuple[Use, ...]
    is_conditional: bool
    buffers: int = 1

    @property
    def buffer_bytes(self) -> int:
        """Size of one buffer."""
        return self.num_bytes // self.buffers

    @property
    def last(self) -> int:
        """Position of its last use."""
        return self.uses[-1].position if self.uses else self.made


def owner_of(table: NodeTable, endpoint: Endpoint) -> Endpoint:
    """Return the output that made an endpoint's buffer."""
    while table.nodes[endpoint.node].op in ALIASES:
        endpoint = table.data_inputs(endpoint.node)[0]
    return endpoint


def find_values(table: NodeTable, order: Sequence[str], outputs: Mapping[str, Sequence[Output]]) -> list[Value]:
    """Return the values of a step that take memory between its ops.

    Args:
        table: The graph.
        order: All its nodes in the order in which they run.
        outputs: Outputs of each op. An op without an entry makes no values.
    """
    position = {name: index for index, name in enumerate(order)}
    inside = _in_branches_and_loops(table, order)
    owner: dict[Endpoint, Endpoint] = {}
    uses: dict[Endpoint, list[Use]] = {}
    conditional: set[Endpoint] = set()
    for name in order:
        op = table.nodes[name].op
        inputs = table.data_inputs(name)
        if op in ALIASES and inputs:
            owner[Endpoint(name, 0)] = owner.get(inputs[0], inputs[0])
            continue
        for endpoint in inputs:
            source = owner.get(endpoint, endpoint)
            uses.setdefault(source, []).append(Use(position[name], name, endpoint))
            if name in inside:
                conditional.add(source)
    values = []
    for name in order:
        op = table.nodes[name].op
        if op in OUTSIDE or op in ALIASES:
            continue
        for port, output in enumerate(outputs.get(name, ())):
            endpoint = Endpoint(name, port)
            taken = sorted(uses.get(endpoint, ()), key=lambda use: use.position)
            if output.num_bytes and taken:
                values.append(
                    Value(
                        endpoint,
                        output.num_bytes,
                        position[name],
                        tuple(taken),
                        name in inside or endpoint in conditional,
                    )
                )
    return values


def _in_branches_and_loops(table: NodeTable, order: Sequence[str]) -> set[str]:
    """Return the ops in branches and loops, and those at their entries and exits."""
    deadness = Deadness(table, list(order))
    loops = loop_depths(table)
    return {name for name in order if table.nodes[name].op in _CONDITIONAL or name in loops or deadness.branches(name)}


def memory_curve(values: Sequence[Value], length: int) -> NDArray[np.int64]:
    """Return the bytes of all values that live at each position of the order: shape (length,), int64.

    A value lives from the op that makes it to its last use. If an op is the last use of an input as large as its own
    result, the result takes over the input's buffer, as in TensorFlow.
    """
    change = np.zeros(length + 1, np.int64)
    dying: dict[int, list[int]] = {}
    for value in values:
        dying.setdefault(value.last, []).append(value.num_bytes)
    for value in values:
        begin = value.made
        free = dying.get(begin, [])
        if value.num_bytes in free:
            free.remove(value.num_bytes)
            begin += 1
        change[begin] += value.num_bytes
        change[value.last + 1] -= value.num_bytes
    return np.cumsum(change[:-1])
