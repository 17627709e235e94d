"""Chooses the variables that are streamed, notes why others are not, and orders the step's ops."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Sequence

from cerebras_tensorflow.compiler.nodes.uses import VariableUses
from cerebras_tensorflow.compiler.options import StreamingOptions
from cerebras_tensorflow.graph.loops import loop_depths
from cerebras_tensorflow.graph.nodes import NodeTable
from cerebras_tensorflow.graph.program import Note
from cerebras_tensorflow.graph.topological_order import CycleError, order_nodes
from cerebras_tensorflow.graph.variables import Obstacle, Variable, step_writes


def is_large(variable: Variable, options: StreamingOptions) -> bool:
    """Whether a variable is large enough to stream. An empty variable never is: there is nothing to move."""
    return variable.num_bytes >= max(1, options.min_stream_bytes)


def choose_streamed(
    table: NodeTable, variables: Iterable[Variable], weights: Collection[str], options: StreamingOptions
) -> tuple[list[Variable], list[Note]]:
    """Return the variables that can be streamed, and notes on large variables that cannot.

    Args:
        table: The graph.
        variables: All variables of the graph.
        weights: Names of the VarHandleOps that may be streamed.
        options: min_stream_bytes is the smallest size to stream.
    """
    streamed: list[Variable] = []
    notes: list[Note] = []
    loops = loop_depths(table)
    for variable in variables:
        if not is_large(variable, options) or variable.handle not in weights:
            continue
        if variable.shape is None or variable.dtype.hasobject:
            continue
        obstacle = variable.obstacle or _find_obstacle(table, variable, loops)
        if obstacle:
            notes.append(Note(variable.name, variable.num_bytes, obstacle.reason, obstacle.ops))
        else:
            streamed.append(variable)
    return streamed, notes


def forbid_writes(table: NodeTable, variables: Iterable[Variable], sources: Collection[str]) -> None:
    """Give an obstacle to each variable that a step without a train op writes, as an evaluation may do.

    The end of such a step does not wait for the store, so an update there would be lost.

    Args:
        table: The graph.
        variables: All variables of the graph.
        sources: Names of the batch's placeholders.
    """
    for variable in variables:
        writes = step_writes(table, variable, sources)
        if writes and variable.obstacle is None:
            variable.obstacle = Obstacle(f"{writes[0].node} writes it in a step that does not train", (writes[0].node,))


def order_without_cycles(
    table: NodeTable, variables: Sequence[Variable], sources: Sequence[str]
) -> tuple[list[VariableUses], list[str], list[Note]]:
    """Order the step's ops so that each use of a streamed variable comes before its update.

    Variables without such an order stay in memory.

    Args:
        table: The graph.
        variables: Those that can be streamed.
        sources: Names of the batch's placeholders.

    Returns:
        The uses of each variable that is streamed, the order, and notes on variables that are not.

    Raises:
        CycleError: If the graph has a cycle that no variable is part of.
    """
    notes: list[Note] = []
    while True:
        all_uses = [VariableUses.of(index, variable, table) for index, variable in enumerate(variables)]
        try:
            return all_uses, _order(table, all_uses, sources), notes
        except CycleError as error:
            tied = [v for v in variables if {access.node for access in v.accesses} & set(error.nodes)]
            if not tied:
                raise
        variables = [variable for variable in variables if variable not in tied]
        notes += [Note(v.name, v.num_bytes, "its uses and its update depend on each other") for v in tied]


def _find_obstacle(table: NodeTable, variable: Variable, loops: Container[str]) -> Obstacle | None:
    """Return the reason why a variable's accesses prevent streaming; None if they do not."""
    for access in variable.accesses:
        if access.op == "ResourceGather" and table.nodes[access.node].attr["batch_dims"].i:
            return Obstacle(f"{access.node} gathers with batch dimensions", (access.node,))
        if access.switches and access.op == "VariableShape":
            return Obstacle(f"{access.node} asks for its shape inside a branch", (access.node,))
    value_uses = VariableUses.of(0, variable, table).value_uses(table)
    for read, user in value_uses:
        if user in loops:
            reason = f"{user} takes the value of {read.node} into a loop"
            return Obstacle(reason, (user, read.node))
    writes = {access.node for access in variable.writes}
    later = table.descendants(writes)
    for read, user in value_uses:
        if user in later and user not in writes:
            reason = f"{user} runs after the update and uses the value that {read.node} read before it"
            return Obstacle(reason, (user, read.node))
    return None


def _order(table: NodeTable, all_uses: Sequence[VariableUses], sources: Sequence[str]) -> list[str]:
    """Order the step's ops: updates early, but after every use of their weight."""
    extra: dict[str, list[str]] = {}
    early: set[str] = set()
    for uses in all_uses:
        users = [user for _, user in uses.value_uses(table)] + [access.node for access in uses.gathers]
        for write in uses.variable.writes:
            extra.setdefault(write.node, []).extend(user for user in users if user != write.node)
            early.add(write.node)
    early |= _only_for(table, early)
    return order_nodes(table, extra, sources, early)


def _only_for(table: NodeTable, writes: Iterable[str]) -> set[str]:
    """Return the writes, and the ops whose results only they use, directly or through other such ops."""
    private = set(writes)
    pending = [endpoint.node for name in private for endpoint in table.inputs[name]]
    while pending:
        name = pending.pop()
        if name not in private and all(consumer in private for consumer in table.consumers[name]):
            private.add(name)
            pending.extend(endpoint.node for endpoint in table.inputs[name])
    return private
