"""tf.while_loop as Enter, Exit and NextIteration: which ops run once per iteration.

Each loop has a frame. Data and control edges may enter or leave a frame only through Enter or Exit, so a pass that adds
edges must know the frame of each op.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cerebras_tensorflow.graph.nodes import NodeTable

ENTER_OPS = frozenset({"Enter", "RefEnter"})
EXIT_OPS = frozenset({"Exit", "RefExit"})


def loop_depths(table: NodeTable) -> dict[str, int]:
    """Return the loop depth of each op's output; ops outside all loops are left out."""
    depths: dict[str, int] = {}
    pending = [name for name, node in table.nodes.items() if node.op in ENTER_OPS]
    while pending:
        name = pending.pop()
        op = table.nodes[name].op
        outer = max((depths.get(endpoint.node, 0) for endpoint in table.inputs[name]), default=0)
        depth = outer + (op in ENTER_OPS) - (op in EXIT_OPS)
        if depth > depths.get(name, 0):
            depths[name] = depth
            pending.extend(table.consumers[name])
    return depths


@dataclass(frozen=True)
class Loop:
    """One loop of a graph.

    Attributes:
        enter: Name of one of its Enter ops.
        condition: Name of its LoopCond op.
    """

    enter: str
    condition: str


def frames_of_nodes(table: NodeTable) -> dict[str, tuple[str, ...]]:
    """Return the names of the loop frames around each op's output, outermost first.

    Ops outside all loops are left out.
    """
    frames: dict[str, tuple[str, ...]] = {}
    pending = [name for name, node in table.nodes.items() if node.op in ENTER_OPS]
    while pending:
        name = pending.pop()
        node = table.nodes[name]
        frame = max((frames.get(endpoint.node, ()) for endpoint in table.inputs[name]), key=len, default=())
        if node.op in ENTER_OPS:
            frame = (*frame, node.attr["frame_name"].s.decode())
        elif node.op in EXIT_OPS:
            frame = frame[:-1]
        if len(frame) > len(frames.get(name, ())):
            frames[name] = frame
            pending.extend(table.consumers[name])
    return frames


def find_loops(table: NodeTable, frames: Mapping[str, tuple[str, ...]]) -> dict[tuple[str, ...], Loop]:
    """Return the loops of a graph by frame.

    Args:
        table: The graph.
        frames: From `frames_of_nodes`.
    """
    enters: dict[tuple[str, ...], str] = {}
    conditions: dict[tuple[str, ...], str] = {}
    for name, frame in frames.items():
        if table.nodes[name].op == "Enter":
            enters.setdefault(frame, name)
        elif table.nodes[name].op == "LoopCond":
            conditions[frame] = name
    return {frame: Loop(enters[frame], conditions[frame]) for frame in conditions if frame in enters}
