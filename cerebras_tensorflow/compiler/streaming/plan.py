"""Plans the memory of a weight-streaming step: the window, the slices, and the values that leave memory."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from cerebras_tensorflow.compiler.memory.budget import Traffic, overhead_bytes, spill_within
from cerebras_tensorflow.compiler.memory.liveness import Value, find_values
from cerebras_tensorflow.compiler.memory.loops import values_kept_by_loops
from cerebras_tensorflow.compiler.memory.recomputing import Restores, recompute_where_cheaper
from cerebras_tensorflow.compiler.memory.spilling import plan_spills
from cerebras_tensorflow.compiler.nodes.uses import VariableUses
from cerebras_tensorflow.compiler.options import StreamingOptions
from cerebras_tensorflow.compiler.slicing.apply_ops import SlicedApply, find_slices
from cerebras_tensorflow.compiler.slicing.assigns import SlicedAssign, find_assign_slices, values_between_ops
from cerebras_tensorflow.graph.cost import Output
from cerebras_tensorflow.graph.nodes import NodeTable
from cerebras_tensorflow.graph.program import Residence

_SMALLEST_WINDOW_BYTES = 64_000_000
_SLICES_IN_WINDOW = 32


@dataclass(frozen=True)
class StreamPlan:
    """The decisions about one step.

    Attributes:
        table: The graph.
        order: All its nodes in the order in which they run.
        uses: Uses of each streamed variable, in the order of Program.stored.
        outputs: Outputs of each op.
        residence: Where the weights are between their uses.
        window_bytes: Bytes of weights in memory at a time.
        applies: Optimizer ops that are done in slices.
        assigns: Groups of assigns that are done in slices.
        restores: How each value that leaves memory comes back.
        overhead_bytes: Memory of kernels, queues, allocators and the graph.
        is_least: Whether all spillable values are spilled.
    """

    table: NodeTable
    order: tuple[str, ...]
    uses: tuple[VariableUses, ...]
    outputs: Mapping[str, Sequence[Output]]
    residence: Residence
    window_bytes: int
    applies: tuple[SlicedApply, ...]
    assigns: tuple[SlicedAssign, ...]
    restores: Restores
    overhead_bytes: int
    is_least: bool

    @cached_property
    def regions(self) -> Mapping[str, str]:
        """Assign that is done in slices, or op that only such assigns need -> the last of the group's assigns."""
        return {name: cut.writes[-1] for cut in self.assigns for name in (*cut.inner, *cut.writes)}

    @cached_property
    def sliced(self) -> Mapping[str, str]:
        """Op that is done in slices -> the op after which all its slices are done."""
        of_applies = {name: cut.node for cut in self.applies for name in (cut.node, *_blocked(cut))}
        of_assigns = {name: cut.writes[-1] for cut in self.assigns for name in _blocked(cut)}
        return of_applies | of_assigns | dict(self.regions)

    def family(self, handles: Sequence[str]) -> list[VariableUses]:
        """Return the uses of the streamed variables with the given VarHandleOps."""
        return [self._by_handle[handle] for handle in handles]

    @cached_property
    def _by_handle(self) -> Mapping[str, VariableUses]:
        return {uses.variable.handle: uses for uses in self.uses}


def plan_step_memory(
    table: NodeTable,
    order: Sequence[str],
    all_uses: Sequence[VariableUses],
    outputs: Mapping[str, Sequence[Output]],
    options: StreamingOptions,
    roots: Container[str],
    resident_bytes: int = 0,
    most_value_bytes: int | None = None,
) -> StreamPlan:
    """Choose the window, the slices, and the values that leave memory.

    Args:
        table: The graph.
        order: All its nodes in the order in which they run.
        all_uses: Uses of each streamed variable.
        outputs: Outputs of each op. If empty, nothing can be spilled.
        options: The user's options.
        roots: Names of all ops that a run may fetch.
        resident_bytes: Bytes of the variables that stay in memory.
        most_value_bytes: Most bytes of values at a time under a budget. None: what the budget leaves.
    """
    sizes = tuple(uses.variable.num_bytes for uses in all_uses)
    window_bytes = options.window_bytes or max(_SMALLEST_WINDOW_BYTES, 2 * _median_by_bytes(sizes))
    slice_bytes = max(options.slice_bytes, window_bytes // _SLICES_IN_WINDOW)
    traffic = Traffic(window_bytes, slice_bytes, sizes) if options.residence is Residence.STORE else None
    # In host memory the original ops update the variables in place, so nothing is sliced.
    is_cut = options.residence is not Residence.HOST_MEMORY
    by_handle = {uses.variable.handle: uses.variable for uses in all_uses if is_cut}
    assigns = find_assign_slices(table, order, by_handle, outputs, roots, slice_bytes)
    applies = find_slices(table, by_handle, outputs, roots, slice_bytes)
    values = _values(table, order, outputs, assigns, applies)
    if traffic is None:
        spilling = plan_spills(values, len(order), outputs, None, options.min_spill_bytes)
    else:
        spilling = spill_within(values, len(order), outputs, traffic, options, resident_bytes, most_value_bytes)
    reads = {read.node for uses in all_uses for read in uses.reads}
    restores = recompute_where_cheaper(table, order, values, spilling, outputs, reads)
    return StreamPlan(
        table=table,
        order=tuple(order),
        uses=tuple(all_uses),
        outputs=outputs,
        residence=options.residence,
        window_bytes=window_bytes,
        applies=tuple(applies),
        assigns=tuple(assigns),
        restores=restores,
        overhead_bytes=overhead_bytes(
            values,
            int(restores.curve.max(initial=0)),
            traffic,
            len(order),
            sum(spill.num_bytes for spill in restores.spills),
        )
        + options.other_bytes,
        is_least=spilling.is_least,
    )


def _values(
    table: NodeTable,
    order: Sequence[str],
    outputs: Mapping[str, Sequence[Output]],
    assigns: Sequence[SlicedAssign],
    applies: Sequence[SlicedApply],
) -> list[Value]:
    """Return the values between ops of a step with sliced updates."""
    position = {name: index for index, name in enumerate(order)}
    inner = {cut.place: (*cut.inner, *_blocked(cut)) for cut in assigns}
    inner |= {position[cut.node]: tuple(_blocked(cut)) for cut in applies}
    places = {name: place for place, names in inner.items() for name in names}
    left_out = frozenset(places)
    places |= {write: cut.place for cut in assigns for write in cut.writes}
    between = values_between_ops(find_values(table, order, outputs), places, left_out)
    return [*between, *values_kept_by_loops(table, order, outputs)]


def _blocked(cut: SlicedApply | SlicedAssign) -> list[str]:
    """Return the ops that compute the gradients of an update in blocks of rows."""
    if isinstance(cut, SlicedApply):
        return list(cut.blocks.inner) if cut.blocks else []
    return [name for blocks in cut.blocks.values() for name in blocks.inner]


def _median_by_bytes(sizes: Sequence[int]) -> int:
    """Return the median weight by bytes: half of all bytes are in weights of this size or smaller."""
    total, seen = sum(sizes), 0
    for size in sorted(sizes):
        seen += size
        if 2 * seen >= total:
            return size
    return 0
