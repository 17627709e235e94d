"""The memory of what loops keep: values on stacks, for the backward pass, and in tensor arrays.

The iterations of a loop push their values, so a stack holds as many values as the loop has iterations. A loop counts as
one iteration if only a run can tell its number (trip_counts.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from cerebras_tensorflow.compiler.memory.liveness import OUTSIDE, Use, Value, owner_of
from cerebras_tensorflow.compiler.memory.trip_counts import trip_counts
from cerebras_tensorflow.graph.cost import Output
from cerebras_tensorflow.graph.loops import frames_of_nodes
from cerebras_tensorflow.graph.nodes import Endpoint, NodeTable

_CONTAINERS = frozenset({"StackV2", "TensorArrayV3", "TensorArrayGradV3"})
# Ops that add values to a container, and which of their inputs these are.
_WRITES = {"StackPushV2": 1, "TensorArrayWriteV3": 2, "TensorArrayScatterV3": 2, "TensorArraySplitV3": 1}
_PASSING = frozenset({"Enter", "Exit", "Identity", "Merge", "NextIteration", "Switch"})


def values_kept_by_loops(
    table: NodeTable, order: Sequence[str], outputs: Mapping[str, Sequence[Output]]
) -> Iterator[Value]:
    """Yield the values in the stacks and tensor arrays of a step.

    Args:
        table: The graph.
        order: All its nodes in the order in which they run.
        outputs: Outputs of each op.
    """
    containers = [name for name in order if table.nodes[name].op in _CONTAINERS]
    if not containers:
        return
    position = {name: index for index, name in enumerate(order)}
    frames = frames_of_nodes(table)
    trips = trip_counts(table, outputs, frames)
    kept: dict[Endpoint, tuple[str, set[str]]] = {}  # a container keeps a buffer, without a copy; so two may share it
    for container in containers:
        users = list(_users(table, Endpoint(container, 0)))
        readers = {name for name in users if table.nodes[name].op not in _WRITES}
        for writer in users:
            number = _WRITES.get(table.nodes[writer].op)
            if number is not None and writer in position:
                taken = owner_of(table, table.data_inputs(writer)[number])
                _, known = kept.setdefault(taken, (writer, set()))
                known |= readers
    for taken, (writer, readers) in kept.items():
        made = outputs.get(taken.node, ())
        num_bytes = made[taken.port].num_bytes if taken.port < len(made) else 0
        if not num_bytes or table.nodes[taken.node].op in OUTSIDE:
            continue
        frame = frames.get(writer, ())
        count = math.prod(trips.get(frame[: depth + 1]) or 1 for depth in range(len(frame)))
        uses = sorted(
            (Use(position[name], name, taken) for name in readers if name in position), key=lambda use: use.position
        )
        yield Value(Endpoint(writer, 0), count * num_bytes, position[writer], tuple(uses), True, max(1, count))


def loops_of_unknown_length(table: NodeTable, outputs: Mapping[str, Sequence[Output]]) -> list[str]:
    """Return the frames of loops whose number of iterations only a run can tell, and which keep values for later."""
    frames = frames_of_nodes(table)
    unknown = {frame for frame, trips in trip_counts(table, outputs, frames).items() if trips is None}
    keeping = {frames.get(name, ()) for name, node in table.nodes.items() if node.op in _WRITES}
    return sorted({frame[-1] for frame in unknown for kept in keeping if kept[: len(frame)] == frame})


def _users(table: NodeTable, handle: Endpoint) -> Iterator[str]:
    """Yield the ops that take a handle, also through loops and branches."""
    pending, seen = [handle], {handle}
    while pending:
        endpoint = pending.pop()
        for name in table.consumers[endpoint.node]:
            if endpoint not in table.data_inputs(name):
                continue
            if table.nodes[name].op not in _PASSING:
                yield name
                continue
            passed = {Endpoint(name, port) for port in range(2)} - seen
            seen |= passed
            pending.extend(passed)
