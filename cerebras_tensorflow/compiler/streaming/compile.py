"""Weight streaming: a step's graph in which large variables are moved in for each use instead of staying in memory.

The steps are those of this package's README.md: find the reads and the update of each large variable, give every group
of uses a load of its own, hang each move on a gate that bounds how many bytes are in memory, and run the update on a
variable that exists only from its load to its store. This module decides; rewriting.py makes the nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence

from cerebras_tensorflow.compiler.memory.budget import Traffic, overhead_bytes, spill_within
from cerebras_tensorflow.compiler.memory.liveness import find_values
from cerebras_tensorflow.compiler.memory.recomputing import recompute_where_cheaper
from cerebras_tensorflow.compiler.memory.restores import RestoreNodes
from cerebras_tensorflow.compiler.memory.spilling import plan_spills
from cerebras_tensorflow.compiler.nodes.emission import VariableUses
from cerebras_tensorflow.compiler.options import StreamingOptions
from cerebras_tensorflow.compiler.slicing.apply_ops import find_slices
from cerebras_tensorflow.compiler.slicing.assigns import find_assign_slices, values_between_ops
from cerebras_tensorflow.compiler.streaming.rewriting import STEP_NODE, Rewriting
from cerebras_tensorflow.graph.constants import share_constants
from cerebras_tensorflow.graph.cost import Output
from cerebras_tensorflow.graph.loops import loop_depths
from cerebras_tensorflow.graph.nodes import CycleError, GraphDef, NodeTable, order_nodes
from cerebras_tensorflow.graph.program import Note, Program, Residence, WeightSpec, resident_access_nodes
from cerebras_tensorflow.graph.variables import Obstacle, Variable, find_variables
from cerebras_tensorflow.graph.weight_casts import cast_for_each_use

_SLICES_IN_WINDOW = 32


def compile_weight_streaming(
    graph_def: GraphDef,
    train_node: str | None,
    sources: Sequence[str],
    weights: Collection[str],
    options: StreamingOptions,
    outputs: Mapping[str, Sequence[Output]],
    roots: Container[str] = (),
) -> Program:
    """Return the weight-streaming Program of a step.

    Args:
        graph_def: The step, pruned, stateless, with reads before writes.
        train_node: Name of the train op; None when nothing is updated.
        sources: Names of the batch's placeholders.
        weights: Names of the VarHandleOps that may be streamed.
        options: See StreamingOptions.
        outputs: Of each op; without them nothing can be spilled.
        roots: Names of all ops that a run may ask for.

    Raises:
        CompileError: If the step cannot be done within the memory budget.
    """
    table = NodeTable(graph_def)
    large = {v.handle for v in find_variables(table).values() if v.num_bytes >= options.min_stream_bytes}
    table = NodeTable(cast_for_each_use(graph_def, large & set(weights)))
    variables = find_variables(table)
    notes = []
    streamed: list[Variable] = []
    loops = loop_depths(table)
    for variable in variables.values():
        if variable.num_bytes < options.min_stream_bytes or variable.handle not in weights:
            continue
        if variable.shape is None or variable.dtype.hasobject:
            continue
        variable.obstacle = variable.obstacle or _find_obstacle(table, variable, loops)
        if variable.obstacle:
            notes.append(Note(variable.name, variable.num_bytes, variable.obstacle.reason, variable.obstacle.ops))
        else:
            streamed.append(variable)
    while True:
        plans = [VariableUses.of(index, variable, table) for index, variable in enumerate(streamed)]
        try:
            order = _order(table, plans, sources)
            break
        except CycleError as error:
            tied = [v for v in streamed if {access.node for access in v.accesses} & set(error.nodes)]
            if not tied:
                raise
            streamed = [variable for variable in streamed if variable not in tied]
            notes.extend(Note(v.name, v.num_bytes, "its uses and its update need each other") for v in tied)
    window_bytes = options.window_bytes or max(64_000_000, 2 * _middle_bytes(streamed))
    slice_bytes = max(options.slice_bytes, window_bytes // _SLICES_IN_WINDOW)
    is_on_host = options.residence is Residence.HOST_MEMORY
    is_mapped = options.residence is Residence.MAPPED_FILE
    sizes = tuple(variable.num_bytes for variable in streamed)
    traffic = Traffic(window_bytes, slice_bytes, sizes) if options.residence is Residence.STORE else None
    by_handle = {} if is_on_host else {variable.handle: variable for variable in streamed}
    assigns = find_assign_slices(table, order, by_handle, outputs, roots, slice_bytes)
    values = values_between_ops(find_values(table, order, outputs), assigns)
    if traffic is None:
        spilling = plan_spills(values, len(order), outputs, None, options.min_spill_bytes)
    else:
        spilling = spill_within(values, len(order), outputs, traffic, options)
    slices = {cut.node: cut for cut in find_slices(table, by_handle, slice_bytes, is_mapped)}
    reads = {read.node for plan in plans for read in plan.before if read.op == "ReadVariableOp"}
    chosen = recompute_where_cheaper(table, order, values, spilling, outputs, reads)
    ends = {name: name for name in slices} | {
        name: cut.writes[-1] for cut in assigns for name in (*cut.inner, *cut.writes)
    }
    restores = RestoreNodes(table, outputs, len(streamed), ends)
    restores.add(chosen)
    rewriting = Rewriting(table, order, plans, window_bytes, outputs, options.residence)
    rewriting.run(train_node, slices, assigns, restores)
    moved = {variable.handle for variable in streamed}
    resident = [v for v in variables.values() if v.handle not in moved and v.shape is not None]
    kept = [*resident, *streamed] if is_on_host else resident
    dtypes = {v.handle: table.nodes[v.handle].attr["dtype"].type for v in kept}
    result = share_constants(rewriting.graph_def(), roots)
    result.node.extend(resident_access_nodes(kept, dtypes))
    return Program(
        mode="weight_streaming",
        graph_def=result,
        step_node=STEP_NODE if train_node else None,
        streamed=tuple(WeightSpec.of(variable) for variable in streamed),
        spilled=tuple(WeightSpec(str(s.endpoint), s.dtype, s.shape, s.num_bytes) for s in chosen.spills),
        resident=tuple(WeightSpec.of(variable) for variable in resident),
        events=tuple(rewriting.events),
        window_bytes=rewriting.most_held_bytes,
        value_curve=tuple(
            number
            for name, number in zip(order, chosen.curve.tolist(), strict=True)
            for _ in (*rewriting.inserted.get(name, ()), name)
        ),
        overhead_bytes=overhead_bytes(values, int(chosen.curve.max(initial=0)), traffic),
        residence=options.residence,
        order=tuple(new for name in order for new in (*rewriting.inserted.get(name, ()), name)),
        notes=tuple(notes),
    )


def _middle_bytes(variables: Sequence[Variable]) -> int:
    """Size of the weight at which half of all bytes are in smaller ones."""
    sizes = sorted(variable.num_bytes for variable in variables)
    total, seen = sum(sizes), 0
    for size in sizes:
        seen += size
        if 2 * seen >= total:
            return size
    return 0


def _find_obstacle(table: NodeTable, variable: Variable, loops: Container[str]) -> Obstacle | None:
    for access in variable.accesses:
        if access.op == "ResourceGather" and table.nodes[access.node].attr["batch_dims"].i:
            return Obstacle(f"{access.node} gathers with batch dimensions", (access.node,))
        if access.switches and access.op == "VariableShape":
            return Obstacle(f"{access.node} asks for its shape inside a branch", (access.node,))
    for read, user in VariableUses.of(0, variable, table).value_uses(table):
        if user in loops:
            reason = f"{user} takes the value that {read.node} read into a loop"
            return Obstacle(reason, (user, read.node))
    later = table.descendants(access.node for access in variable.writes)
    for read, user in VariableUses.of(0, variable, table).value_uses(table):
        if user in later and user not in {access.node for access in variable.writes}:
            reason = f"{user} uses the value that {read.node} read before the update, after the update"
            return Obstacle(reason, (user, read.node))
    return None


def _order(table: NodeTable, plans: Sequence[VariableUses], sources: Sequence[str]) -> list[str]:
    """Order the step's ops, updates early, every use of a weight before its update."""
    extra: dict[str, list[str]] = {}
    early: set[str] = set()
    for plan in plans:
        uses = [user for _, user in plan.value_uses(table)] + [t.node for t in plan.before if t.op == "ResourceGather"]
        for write in plan.variable.writes:
            extra.setdefault(write.node, []).extend(use for use in uses if use != write.node)
            early.add(write.node)
    early |= _only_for(table, early)
    return order_nodes(table, extra, sources, early)


def _only_for(table: NodeTable, writes: Iterable[str]) -> set[str]:
    """Ops whose results go nowhere but into the given ones."""
    private = set(writes)
    pending = [endpoint.node for name in private for endpoint in table.inputs[name]]
    while pending:
        name = pending.pop()
        if name not in private and all(consumer in private for consumer in table.consumers[name]):
            private.add(name)
            pending.extend(endpoint.node for endpoint in table.inputs[name])
    return private
