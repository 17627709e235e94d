"""Compiles a step for weight streaming: large variables are loaded for their uses instead of staying in memory.

The compiler's README.md describes the four steps: choose the variables (choice.py), order the ops (choice.py), plan
the memory (plan.py), rewrite the graph (rewriting.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping, Sequence

from cerebras_tensorflow.compiler.memory.budget import Footprint, budget_error
from cerebras_tensorflow.compiler.options import StreamingOptions
from cerebras_tensorflow.compiler.streaming.choice import choose_streamed, forbid_writes, is_large, order_without_cycles
from cerebras_tensorflow.compiler.streaming.plan import StreamPlan, plan_step_memory
from cerebras_tensorflow.compiler.streaming.rewriting import STEP_NODE, Rewritten, rewrite
from cerebras_tensorflow.graph.cost import Output
from cerebras_tensorflow.graph.nodes import GraphDef, NodeTable
from cerebras_tensorflow.graph.program import Note, Program, Residence, WeightSpec, resident_access_nodes
from cerebras_tensorflow.graph.variables import Variable, find_variables
from cerebras_tensorflow.graph.weight_casts import cast_for_each_use

_MOST_ATTEMPTS = 4  # to find a plan within the memory budget; the last one spills everything


def compile_weight_streaming(
    graph_def: GraphDef,
    train_node: str | None,
    sources: Sequence[str],
    weights: Collection[str],
    options: StreamingOptions,
    outputs: Mapping[str, Sequence[Output]],
    roots: Container[str] = (),
    spilled_before: int = 0,
) -> Program:
    """Return the weight-streaming Program of a step.

    Args:
        graph_def: The step, pruned, stateless, with reads before writes. It is changed.
        train_node: Name of the train op; None when nothing is updated.
        sources: Names of the batch's placeholders.
        weights: Names of the VarHandleOps that may be streamed.
        options: The user's options.
        outputs: Outputs of each op. If empty, nothing can be spilled.
        roots: Names of all ops that a run may fetch.
        spilled_before: Spilled values of the step's other part. They come first in the store.

    Raises:
        CompileError: If the step does not fit into the memory budget.
    """
    table = NodeTable(graph_def)
    large = {variable.handle for variable in find_variables(table).values() if is_large(variable, options)}
    table = cast_for_each_use(table, large & set(weights))
    variables = find_variables(table)
    if train_node is None:
        forbid_writes(table, variables.values(), sources)
    streamed, obstacles = choose_streamed(table, variables.values(), weights, options)
    all_uses, order, ties = order_without_cycles(table, streamed, sources)
    moved = {uses.variable.handle for uses in all_uses}
    resident = [v for v in variables.values() if v.handle not in moved]
    resident_bytes = sum(variable.num_bytes for variable in resident)

    def attempt(most_value_bytes: int | None) -> tuple[StreamPlan, Rewritten]:
        plan = plan_step_memory(table, order, all_uses, outputs, options, roots, resident_bytes, most_value_bytes)
        return plan, rewrite(plan, train_node, spilled_before, roots)

    plan, rewritten = _within_budget(attempt, options, resident_bytes)
    return _program(plan, rewritten, resident, train_node, [*obstacles, *ties])


def _within_budget(
    attempt: Callable[[int | None], tuple[StreamPlan, Rewritten]], options: StreamingOptions, resident_bytes: int
) -> tuple[StreamPlan, Rewritten]:
    """Plan and rewrite with fewer and fewer bytes of values, until the step fits into the memory budget.

    The bytes that moves hold in addition to the values are known only after the graph has been rewritten.

    Args:
        attempt: Takes the most bytes of values (None: what the budget leaves), returns a plan and its graph.
        options: The budget.
        resident_bytes: Variables that stay in memory.

    Raises:
        CompileError: If the step does not fit even with all spillable values spilled.
    """
    plan, rewritten = attempt(None)
    if options.memory_budget is None or plan.residence is not Residence.STORE:
        return plan, rewritten
    for number in range(1, _MOST_ATTEMPTS + 1):
        peak_bytes = int((plan.restores.curve + rewritten.held_curve).max(initial=0))
        value_bytes = int(plan.restores.curve.max(initial=0))
        footprint = Footprint(
            options.process_bytes, resident_bytes, value_bytes, peak_bytes - value_bytes, plan.overhead_bytes
        )
        excess_bytes = footprint.excess_bytes(options.memory_budget)
        if excess_bytes <= 0:
            return plan, rewritten
        if plan.is_least:
            raise budget_error(options.memory_budget, footprint)
        plan, rewritten = attempt(max(0, value_bytes - excess_bytes) if number < _MOST_ATTEMPTS - 1 else 0)
    raise AssertionError("the last attempt spills everything")


def _program(
    plan: StreamPlan,
    rewritten: Rewritten,
    resident: Sequence[Variable],
    train_node: str | None,
    notes: Sequence[Note],
) -> Program:
    """Return the Program of a rewritten step."""
    streamed = [uses.variable for uses in plan.uses]
    in_session = [*resident, *streamed] if plan.residence is Residence.HOST_MEMORY else list(resident)
    dtypes = {variable.handle: plan.table.nodes[variable.handle].attr["dtype"].type for variable in in_session}
    graph_def = rewritten.graph_def
    graph_def.node.extend(resident_access_nodes(in_session, dtypes))
    # A new node has the memory of the original op that it comes before.
    placed = [
        (name, value_bytes, held_bytes)
        for original, value_bytes, held_bytes in zip(
            plan.order, plan.restores.curve.tolist(), rewritten.held_curve.tolist(), strict=True
        )
        for name in (*rewritten.inserted.get(original, ()), original)
    ]
    return Program(
        mode="weight_streaming",
        graph_def=graph_def,
        step_node=STEP_NODE if train_node else None,
        streamed=tuple(WeightSpec.of(variable) for variable in streamed),
        spilled=tuple(WeightSpec(str(s.endpoint), s.dtype, s.shape, s.num_bytes) for s in plan.restores.spills),
        resident=tuple(WeightSpec.of(variable) for variable in resident),
        events=rewritten.events,
        window_bytes=rewritten.window_bytes,
        value_curve=tuple(num_bytes for _, num_bytes, _ in placed),
        held_curve=tuple(num_bytes for _, _, num_bytes in placed),
        overhead_bytes=plan.overhead_bytes,
        residence=plan.residence,
        order=tuple(name for name, _, _ in placed),
        notes=tuple(notes),
    )
