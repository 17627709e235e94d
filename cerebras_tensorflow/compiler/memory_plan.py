"""How much memory a step needs: what stays, what the schedule moves in, and what lives between ops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cerebras_tensorflow.graph.nodes import NodeTable, order_nodes
from cerebras_tensorflow.graph.program import Program

# Ops whose output is their first input's buffer.
_ALIASES = frozenset({"Identity", "Reshape", "ExpandDims", "Squeeze", "StopGradient", "PreventGradient", "Snapshot"})
# Ops whose output a later op may overwrite in place when nothing else needs it.
_VARIABLE_READS = frozenset({"ReadVariableOp", "VarHandleOp", "Const", "Placeholder", "PyFunc"})


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes of memory that a step needs beside the process itself.

    Attributes:
        resident_bytes: Variables that stay.
        window_bytes: Streamed weights in memory at the busiest moment.
        activation_bytes: Most bytes of values between ops.
        store_bytes: Streamed weights in the store.
    """

    resident_bytes: int
    window_bytes: int
    activation_bytes: int
    store_bytes: int

    @property
    def peak_bytes(self) -> int:
        """Upper estimate of all three together; the store is not in it."""
        return self.resident_bytes + self.window_bytes + self.activation_bytes


def plan_memory(program: Program, sizes: Mapping[str, int], live: Mapping[str, int] | None = None) -> MemoryPlan:
    """Return the memory plan of a Program.

    Args:
        program: The Program.
        sizes: Bytes of the outputs of each op of the original graph.
        live: From `live_bytes`, where it is known already.
    """
    if live is None:
        live = live_bytes(program, sizes)
    return MemoryPlan(
        resident_bytes=sum(spec.num_bytes for spec in program.resident),
        window_bytes=program.window_bytes,
        activation_bytes=max(live.values(), default=0),
        store_bytes=sum(spec.num_bytes for spec in program.streamed),
    )


def live_bytes(program: Program, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the bytes of values between ops while each op runs, by op, in order; arguments as plan_memory."""
    table = NodeTable(program.graph_def)
    order = [name for name in (program.order or order_nodes(table)) if name in table.nodes]
    position = {name: index for index, name in enumerate(order)}
    owner: dict[str, str] = {}
    last: dict[str, int] = {}
    for name in order:
        inputs = table.data_inputs(name)
        is_alias = table.nodes[name].op in _ALIASES and bool(inputs)
        owner[name] = owner.get(inputs[0].node, inputs[0].node) if is_alias else name
        for endpoint in inputs:
            buffer = owner.get(endpoint.node, endpoint.node)
            last[buffer] = max(last.get(buffer, 0), position[name])
    releases: dict[int, list[str]] = {}
    for name, end in last.items():
        releases.setdefault(end, []).append(name)
    live: dict[str, int] = {}
    total = 0
    curve = {}
    for index, name in enumerate(order):
        if owner[name] == name and table.nodes[name].op not in _VARIABLE_READS and name in last:
            live[name] = sizes.get(name, 0)
            dying = [live.get(other, 0) for other in releases.get(index, ())]
            reused = live[name] if live[name] in dying else 0  # an op may write over an input that nobody else needs
            total += live[name]
            curve[name] = total - reused
        else:
            curve[name] = total
        for other in releases.get(index, ()):
            total -= live.pop(other, 0)
    return curve
