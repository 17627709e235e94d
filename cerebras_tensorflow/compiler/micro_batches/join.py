"""Joins the two compiled parts of a step in micro-batches to one Program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from cerebras_tensorflow.graph.micro_batches import UPDATE, MicroBatches
from cerebras_tensorflow.graph.nodes import Endpoint, GraphDef, NodeDef, copied, parse_input
from cerebras_tensorflow.graph.program import RESIDENT, Event, Program, WeightSpec

_SHARED_OPS = ("VarHandleOp", "Placeholder")


def join(gradient: Program, update: Program, plan: MicroBatches, scratch: Sequence[WeightSpec]) -> Program:
    """Return one Program with both parts. If both have a node of the same name, that of the update gets a prefix.

    Args:
        gradient: The first part. Its spilled values follow those of the update in the store.
        update: The second part. It has the same variables, with the same indices.
        plan: The values that pass from the first part to the second.
        scratch: Partial sums in the store, after all spilled values.
    """
    assert gradient.streamed == update.streamed, "both parts stream the same variables"
    assert gradient.resident == update.resident, "both parts keep the same variables"
    renamed = _renamer(gradient, update)
    graph_def = GraphDef(versions=gradient.graph_def.versions, library=gradient.graph_def.library)
    graph_def.node.extend(gradient.graph_def.node)
    known = {node.name for node in graph_def.node}
    for node in update.graph_def.node:
        name = renamed(node.name)
        if name not in known:
            graph_def.node.append(_with_names(node, name, renamed))
    functions = {function.signature.name for function in graph_def.library.function}
    graph_def.library.function.extend(
        function for function in update.graph_def.library.function if function.signature.name not in functions
    )
    offset = len(gradient.order)
    later = [_moved(event, offset, renamed) for event in update.events]
    is_planned = bool(gradient.value_curve and update.value_curve)
    return replace(
        update,
        graph_def=graph_def,
        step_node=renamed(update.step_node) if update.step_node else None,
        spilled=(*update.spilled, *gradient.spilled, *scratch),
        events=(*gradient.events, *later),
        window_bytes=max(gradient.window_bytes, update.window_bytes),
        order=(*gradient.order, *map(renamed, update.order)),
        value_curve=(*gradient.value_curve, *update.value_curve) if is_planned else (),
        held_curve=(*gradient.held_curve, *update.held_curve) if is_planned else (),
        overhead_bytes=_overhead_bytes(gradient, update),
        notes=tuple(dict.fromkeys((*gradient.notes, *update.notes))),
        micro_batches=plan,
    )


def _overhead_bytes(*parts: Program) -> int:
    """Return the overhead with which the step's peak is that of the part that takes more. Each counts both graphs."""
    values_and_moves = [part.value_bytes + part.moved_bytes for part in parts]
    peaks = (num_bytes + part.overhead_bytes for num_bytes, part in zip(values_and_moves, parts, strict=True))
    return max(peaks) - max(values_and_moves)


def _renamer(gradient: Program, update: Program) -> Callable[[str], str]:
    """Return the function from a node's name in the update to its name in the joined graph."""
    first = {node.name: node for node in gradient.graph_def.node}
    both = {
        node.name
        for node in update.graph_def.node
        if node.name in first and not (node.op in _SHARED_OPS and node.op == first[node.name].op)
    }
    # The nodes through which the runtime sets and reads variables are the same in both parts.
    both = {name for name in both if not name.startswith(RESIDENT)}
    return lambda name: f"{UPDATE}{name}" if name in both else name


def _with_names(node: NodeDef, name: str, renamed: Callable[[str], str]) -> NodeDef:
    new = copied(node)
    new.name = name
    for position, text in enumerate(new.input):
        endpoint = parse_input(text)
        if renamed(endpoint.node) != endpoint.node:
            new.input[position] = str(Endpoint(renamed(endpoint.node), endpoint.port))
    return new


def _moved(event: Event, offset: int, renamed: Callable[[str], str]) -> Event:
    """Return an event of the update at its position in the joined order."""
    return replace(
        event,
        node=renamed(event.node),
        first=event.first + offset,
        last=event.last + offset,
        finishers=tuple((renamed(node), position + offset) for node, position in event.finishers),
    )
