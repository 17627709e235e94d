"""The compiler's entry: the passes that turn one step's graph into a Program, and their order."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import tensorflow as tf

from cerebras_tensorflow.compiler.memory.budget import graph_bytes
from cerebras_tensorflow.compiler.micro_batches.join import join
from cerebras_tensorflow.compiler.micro_batches.ownership import Update, choose_owners, update_of
from cerebras_tensorflow.compiler.micro_batches.split import Parts, Request, split
from cerebras_tensorflow.compiler.micro_batches.sums import (
    SharedSums,
    host_bytes,
    num_partials,
    partial_sums,
    share_sums,
)
from cerebras_tensorflow.compiler.options import StreamingOptions
from cerebras_tensorflow.compiler.pipelined import compile_pipelined
from cerebras_tensorflow.compiler.slicing.blocked_gradients import compute_in_blocks
from cerebras_tensorflow.compiler.streaming.compile import compile_weight_streaming
from cerebras_tensorflow.config.env import WEIGHT_STREAMING
from cerebras_tensorflow.errors import MemoryBudgetError
from cerebras_tensorflow.graph.accesses.ordering import accesses_in_order, reads_before_writes, writes_in_order
from cerebras_tensorflow.graph.cost import Output, op_outputs
from cerebras_tensorflow.graph.micro_batches import EVERY, Mark, MicroBatches
from cerebras_tensorflow.graph.nodes import GraphDef, NodeDef
from cerebras_tensorflow.graph.program import GLOBAL_STEP_AFTER, Program, Residence
from cerebras_tensorflow.graph.randomness import make_stateless
from cerebras_tensorflow.graph.scatters import add_rows_in_order
from cerebras_tensorflow.graph.separate_ops import keep_separate
from cerebras_tensorflow.graph.sums import fix_order_of_sums


@dataclass(frozen=True)
class Step:
    """One step as model_fn and the estimator define it.

    Attributes:
        graph_def: The part of model_fn's graph that the roots and the train op need.
        roots: Names of all ops that a run of the step may fetch.
        train_node: Name of the train op; None in evaluation and prediction.
        sources: Names of the placeholders that take the batch.
        global_step: Name of the global step's VarHandleOp; None if the graph has none.
        weights: VarHandleOps of the variables in a checkpoint, by name. No other variable is streamed.
        micro_batches: Micro-batches of a training step; the graph is that of one micro-batch.
        num_csx: CSX that share them.
        marks: The gradients that model_fn computes. Empty for a single micro-batch.
        trainable: VarHandleOps of the trainable variables. Empty for a single micro-batch.
        is_shared: Whether the CSX hold each streamed weight once, and each one updates what it owns.
    """

    graph_def: GraphDef
    roots: Sequence[str]
    train_node: str | None
    sources: Sequence[str]
    global_step: str | None
    weights: Sequence[str]
    micro_batches: int = 1
    num_csx: int = 1
    marks: Sequence[Mark] = ()
    trainable: Sequence[str] = ()
    is_shared: bool = False


@dataclass(frozen=True)
class _Part:
    """A graph to compile: a whole step, or the gradients or the update of a step in micro-batches.

    Attributes:
        graph_def: The graph.
        roots: Names of all ops that a run may fetch.
        train_node: Name of the train op; None if the part has none.
        sources: Names of its placeholders.
        weights: VarHandleOps that may be streamed.
        added: Nodes to add to the graph.
    """

    graph_def: GraphDef
    roots: Sequence[str]
    train_node: str | None
    sources: Sequence[str]
    weights: Sequence[str]
    added: Sequence[NodeDef] = ()


def compile_step(
    step: Step, mode: str, options: StreamingOptions, outputs: Mapping[str, Sequence[Output]] | None = None
) -> Program:
    """Return the Program of a step. If several CSX share the weights, it is that of the first one.

    Both modes fix the order of sums, of additions to rows and of several writes to one variable, make random ops
    functions of the step, and put reads before writes. So their results agree to the last bit.

    Args:
        step: The step.
        mode: Execution mode.
        options: Options of weight streaming.
        outputs: Outputs of each op of model_fn's graph, from graph.cost.op_outputs. None: the memory of values is
            unknown, and nothing is spilled. A step in micro-batches needs them.

    Raises:
        CompileError: If the graph cannot be compiled for the mode, or not within the memory budget.
    """
    if step.train_node and step.micro_batches > 1:
        return _compile_in_parts(_with_step_counter(step), mode, options, outputs or {}, [0])[0]
    part = _Part(step.graph_def, step.roots, step.train_node, step.sources, _streamable(step), _read_after(step))
    return _compile_part(part, mode, options, outputs or {})


def compile_for_each_csx(
    step: Step, mode: str, options: StreamingOptions, outputs: Mapping[str, Sequence[Output]]
) -> tuple[Program, ...]:
    """Return the Program of each CSX. If the CSX share the weights, the Programs differ in the update.

    Args:
        step: The step.
        mode: Execution mode.
        options: Options of weight streaming.
        outputs: Outputs of each op.

    Raises:
        CompileError: As `compile_step`.
    """
    if step.num_csx == 1 or not step.train_node:
        return (compile_step(step, mode, options, outputs),)
    return _compile_in_parts(_with_step_counter(step), mode, options, outputs, range(step.num_csx))


def _with_step_counter(step: Step) -> Step:
    """Return a step that also reads the global step after all updates."""
    graph_def = GraphDef()
    graph_def.CopyFrom(step.graph_def)
    graph_def.node.extend(_read_after(step))
    return replace(step, graph_def=graph_def, weights=_streamable(step))


def _streamable(step: Step) -> list[str]:
    """Return the weights without the global step. It stays resident: every run reads and fetches it."""
    return [weight for weight in step.weights if weight != step.global_step]


def _read_after(step: Step) -> list[NodeDef]:
    """Return the node that reads the global step after the train op; none if the step lacks one of them."""
    if not step.train_node or not step.global_step:
        return []
    after = NodeDef(name=GLOBAL_STEP_AFTER, op="ReadVariableOp", input=[step.global_step, f"^{step.train_node}"])
    handle = next(node for node in step.graph_def.node if node.name == step.global_step)
    after.attr["dtype"].CopyFrom(handle.attr["dtype"])
    return [after]


def _compile_part(
    part: _Part,
    mode: str,
    options: StreamingOptions,
    outputs: Mapping[str, Sequence[Output]],
    spilled_before: int = 0,
) -> Program:
    # Each pass copies the graph: hundreds of megabytes for a large model. At most two copies exist at a time.
    graph_def, sum_of_partial = fix_order_of_sums(part.graph_def)
    graph_def.node.extend(part.added)
    outputs = {**outputs, **{new: outputs[name] for new, name in sum_of_partial.items() if name in outputs}}
    graph_def = add_rows_in_order(graph_def, outputs)
    graph_def, outputs = keep_separate(graph_def, outputs)
    if part.train_node:
        graph_def, made = compute_in_blocks(graph_def, outputs, frozenset(part.roots))
        outputs = {**outputs, **made}
    graph_def = make_stateless(graph_def)
    if part.train_node:
        graph_def = reads_before_writes(graph_def, part.train_node, part.sources)
        graph_def = writes_in_order(graph_def, part.train_node)
    else:
        graph_def = accesses_in_order(graph_def, part.roots, part.sources)
    if mode != WEIGHT_STREAMING:
        return compile_pipelined(graph_def, part.sources, outputs, options.other_bytes)
    roots = frozenset(part.roots)
    return compile_weight_streaming(
        graph_def, part.train_node, part.sources, part.weights, options, outputs, roots, spilled_before
    )


def _compile_in_parts(
    step: Step,
    mode: str,
    options: StreamingOptions,
    outputs: Mapping[str, Sequence[Output]],
    ranks: Sequence[int],
) -> tuple[Program, ...]:
    """Return the Programs of some CSX for a step in micro-batches: gradients of one, and the update on the totals."""
    in_memory: set[str] = set()  # ops of gradients whose total cannot be streamed
    while True:
        parts = split(_cut_request(step, mode, options, outputs, in_memory))
        gradient, update = _compile_both(step, parts, mode, options, outputs)
        indices = {spec.name: index for index, spec in enumerate(update.streamed)}
        refused = {parts.gradients[number].mark.values for number, name in parts.stored.items() if name not in indices}
        if not refused:
            break
        in_memory |= refused
    is_streamed = update.streamed and update.residence is not Residence.HOST_MEMORY
    if not (step.is_shared and is_streamed and step.num_csx > 1):
        program = _joined(step, parts, gradient, update)
        return (program,) * len(ranks)
    return _compile_shares(step, parts, (gradient, update), mode, options, outputs, ranks)


def _joined(
    step: Step,
    parts: Parts,
    gradient: Program,
    update: Program,
    sums: SharedSums | None = None,
) -> Program:
    """Return the Program of both parts. If several CSX share the weights, `sums` says where this one keeps sums."""
    indices = {spec.name: index for index, spec in enumerate(update.streamed)}
    stored = {number: indices[name] for number, name in parts.stored.items()}
    first_scratch = len(update.stored) + len(gradient.spilled)
    most = num_partials(step.micro_batches, step.num_csx)
    levels = sums.levels if sums is not None else dict.fromkeys(stored, most)
    gradients, scratch = partial_sums(parts.gradients, stored, update.streamed, levels, first_scratch)
    if sums is not None:
        gradients = tuple(sums.placed(number, one) for number, one in enumerate(gradients))
    plan = MicroBatches(step.micro_batches, gradients, parts.carried, len(gradient.order), step.num_csx)
    return join(gradient, update, plan, scratch)


def _compile_shares(
    step: Step,
    parts: Parts,
    whole: tuple[Program, Program],
    mode: str,
    options: StreamingOptions,
    outputs: Mapping[str, Sequence[Output]],
    ranks: Sequence[int],
) -> tuple[Program, ...]:
    """Return the Programs of CSX that share the weights: the same gradients, and the update of what each one owns.

    Args:
        step: The step.
        parts: Its two parts.
        whole: Both parts, compiled for a CSX that owns all weights.
        mode: Execution mode.
        options: Options of weight streaming.
        outputs: Outputs of each op.
        ranks: The CSX.
    """
    assert step.train_node is not None
    gradient, update = whole
    handles = _handles_of(parts.update, [spec.name for spec in update.streamed])
    request = Update(
        graph_def=parts.update,
        train_node=step.train_node,
        roots=parts.update_roots,
        outputs=_outputs_of_update(parts, outputs),
        sizes={handles[spec.name]: spec.num_bytes for spec in update.streamed},
        totals=frozenset(handles[name] for name in parts.stored.values()),
        placeholders={
            name: number
            for number, one in enumerate(parts.gradients)
            if one.mark.rows is not None
            for name in one.totals
        },
    )
    owners = choose_owners(request, step.num_csx)
    by_index = tuple(owners.variables[handles[spec.name]] for spec in update.streamed)
    own_totals = {number: owners.variables[handles[name]] for number, name in parts.stored.items()}
    sizes = {number: request.sizes[handles[name]] for number, name in parts.stored.items()}
    sums = share_sums(parts.gradients, own_totals, sizes, step.num_csx, step.micro_batches)
    programs = []
    of_gradient, of_update = _options_of_parts(step, parts, options, outputs)
    for rank in ranks:
        weights = list(handles.values())
        own = _Part(
            update_of(request, owners, rank), parts.update_roots, step.train_node, parts.update_sources, weights
        )
        second = _compile_part(own, mode, of_update, request.outputs)
        if len(second.spilled) != len(update.spilled):
            first = _Part(parts.gradient, parts.gradient_roots, None, step.sources, weights)
            gradient = _compile_part(first, mode, of_gradient, outputs, len(second.spilled))
            update = second
        program = _joined(step, parts, gradient, second, sums[rank])
        programs.append(_with_owners(program, by_index, owners.sparse))
    return tuple(programs)


def _with_owners(program: Program, owners: tuple[int, ...], sparse: Mapping[int, int]) -> Program:
    """Return a Program that knows who owns each weight, and who takes each total."""
    plan = program.micro_batches
    assert plan is not None
    gradients = tuple(
        replace(one, owner=owners[one.stored] if one.stored is not None else sparse.get(number, EVERY))
        for number, one in enumerate(plan.gradients)
    )
    return replace(program, owners=owners, micro_batches=replace(plan, gradients=gradients))


def _cut_request(
    step: Step,
    mode: str,
    options: StreamingOptions,
    outputs: Mapping[str, Sequence[Output]],
    in_memory: Container[str],
) -> Request:
    """Return the request to cut a step. Totals that are large enough to stream go to the store, if there is one.

    Args:
        step: The step.
        mode: Execution mode.
        options: Options of weight streaming.
        outputs: Outputs of each op.
        in_memory: Ops of gradients whose total stays in memory.
    """
    assert step.train_node is not None
    has_store = mode == WEIGHT_STREAMING and options.residence is not Residence.HOST_MEMORY

    def is_stored(mark: str, output: Output) -> bool:
        is_large = output.shape is not None and output.num_bytes >= max(1, options.min_stream_bytes)
        return has_store and is_large and mark not in in_memory

    return Request(
        graph_def=step.graph_def,
        train_node=step.train_node,
        roots=step.roots,
        sources=step.sources,
        marks=step.marks,
        trainable=frozenset(step.trainable),
        outputs=outputs,
        is_stored=is_stored,
    )


def _compile_both(
    step: Step, parts: Parts, mode: str, options: StreamingOptions, outputs: Mapping[str, Sequence[Output]]
) -> tuple[Program, Program]:
    """Compile both parts so that they stream the same variables.

    Raises:
        MemoryBudgetError: That of the part that needs the larger budget.
    """
    weights = [*step.weights, *parts.stored.values()]
    outputs_of_update = _outputs_of_update(parts, outputs)
    of_gradient, of_update = _options_of_parts(step, parts, options, outputs)
    while True:
        second = _Part(parts.update, parts.update_roots, step.train_node, parts.update_sources, weights)
        first = _Part(parts.gradient, parts.gradient_roots, None, step.sources, weights)
        try:
            update = _compile_part(second, mode, of_update, outputs_of_update)
        except MemoryBudgetError as error:
            try:
                _compile_part(first, mode, of_gradient, outputs)
            except MemoryBudgetError as other:
                raise max(error, other, key=lambda one: one.needed_bytes) from None
            raise
        gradient = _compile_part(first, mode, of_gradient, outputs, len(update.spilled))
        refused = {spec.name for spec in gradient.streamed} ^ {spec.name for spec in update.streamed}
        if not refused:
            return gradient, update
        weights = _without(weights, refused, step.graph_def)


def _options_of_parts(
    step: Step, parts: Parts, options: StreamingOptions, outputs: Mapping[str, Sequence[Output]]
) -> tuple[StreamingOptions, StreamingOptions]:
    """Return the options of the gradients and of the update: the other graph and all sums are in memory, too."""
    levels = num_partials(step.micro_batches, step.num_csx)
    sums = host_bytes(parts.gradients, parts.stored, outputs, levels)
    of_gradient, of_update = (
        replace(options, other_bytes=sums + graph_bytes(len(other.node))) for other in (parts.update, parts.gradient)
    )
    return of_gradient, of_update


def _outputs_of_update(parts: Parts, outputs: Mapping[str, Sequence[Output]]) -> Mapping[str, Sequence[Output]]:
    """Return the outputs of the update's ops. The total of a sparse gradient may have any number of rows."""
    if all(gradient.mark.rows is None for gradient in parts.gradients):
        return outputs
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(parts.update, name="")
    return {
        name: [
            replace(new, num_bytes=max(new.num_bytes, old.num_bytes))
            for new, old in zip(made, outputs.get(name, made), strict=True)
        ]
        for name, made in op_outputs(graph).items()
    }


def _without(weights: Iterable[str], refused: Iterable[str], graph_def: GraphDef) -> list[str]:
    """Return the VarHandleOps of the variables that both parts can stream.

    Args:
        weights: VarHandleOps.
        refused: Names, in the checkpoint, of the variables that one part cannot stream.
        graph_def: The step.
    """
    dropped = set(_handles_of(graph_def, refused).values()) | set(refused)
    return [weight for weight in weights if weight not in dropped]


def _handles_of(graph_def: GraphDef, names: Iterable[str]) -> dict[str, str]:
    """Return name in the checkpoint -> VarHandleOp."""
    handles = {
        node.attr["shared_name"].s.decode() or node.name: node.name
        for node in graph_def.node
        if node.op == "VarHandleOp"
    }
    return {name: handles[name] for name in names if name in handles}
