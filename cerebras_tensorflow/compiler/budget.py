"""The memory of a weight-streaming step, and how much of it has to be spilled.

    peak = the process without the step
         + weights on the move: the window, or the largest weight, which gets the memory to itself
         + slices: those of one optimizer op, and the copies that it makes of them
         + values between ops
         + a fixed part: the session, the store's queues and buffers, scratch memory of the kernels

Without a budget, values are spilled as far as that adds little to what the weights' moves cost anyway. It makes the peak
of a deep model depend little on its depth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cerebras_tensorflow.compiler.liveness import Value
from cerebras_tensorflow.compiler.spilling import SpillPlan, plan_spills
from cerebras_tensorflow.errors import CompileError
from cerebras_tensorflow.graph.cost import Output
from cerebras_tensorflow.units import format_bytes

# Measured on GPT shapes by scripts/bench/bench_streaming.py.
FIXED_BYTES = 250_000_000
# Slices in memory at a time: three of one optimizer op, twice, as it copies what it loads.
_SLICES = 6
# Bytes that spilling may add to those that the weights' moves take, where there is no budget.
_FREE_SHARE = 0.05
_MOVES_OF_A_WEIGHT = 4  # forward, backward, and to and from its update


@dataclass(frozen=True)
class Moves:
    """What the schedule moves.

    Attributes:
        window_bytes: Bytes of weights in memory at a time, where one does not exceed it.
        slice_bytes: Most bytes of a variable that an element-wise update has in memory.
        weights: Size of each streamed variable.
    """

    window_bytes: int
    slice_bytes: int
    weights: tuple[int, ...]

    @property
    def peak_bytes(self) -> int:
        """Most bytes on the move at a time."""
        largest = max(self.weights, default=0)
        return max(self.window_bytes, largest) + _SLICES * min(self.slice_bytes, largest)

    @property
    def step_bytes(self) -> int:
        """Bytes that a step moves, roughly."""
        return _MOVES_OF_A_WEIGHT * sum(self.weights)


def spill_within(
    values: Sequence[Value],
    length: int,
    outputs: Mapping[str, Sequence[Output]],
    moves: Moves,
    memory_budget: int | None,
    process_bytes: int,
) -> SpillPlan:
    """Choose what to spill.

    Args:
        values: Of the step.
        length: Of the step's order.
        outputs: Of each op.
        moves: Of its weights.
        memory_budget: Most bytes that the process may take; None: no limit.
        process_bytes: What it takes without the step.

    Raises:
        CompileError: If the budget is too small.
    """
    least = plan_spills(values, length, outputs, 0)
    if memory_budget is None:
        return _spill_little(values, length, outputs, least, int(_FREE_SHARE * moves.step_bytes))
    fixed = process_bytes + FIXED_BYTES
    limit = memory_budget - fixed - moves.peak_bytes
    if least.peak_bytes > limit:
        raise CompileError(
            f"memory_budget is {format_bytes(memory_budget)}, and this step needs at least "
            f"{format_bytes(fixed + moves.peak_bytes + least.peak_bytes)}: {format_bytes(fixed)} for the process, "
            f"{format_bytes(moves.peak_bytes)} for weights on the move, {format_bytes(least.peak_bytes)} for the values "
            "of its largest ops with everything else spilled. Raise memory_budget to that, or make the batch or the "
            "sequence smaller"
        )
    return plan_spills(values, length, outputs, limit)


def _spill_little(
    values: Sequence[Value], length: int, outputs: Mapping[str, Sequence[Output]], least: SpillPlan, free_bytes: int
) -> SpillPlan:
    """Return the plan of the lowest peak among those that move at most `free_bytes`."""
    best = plan_spills(values, length, outputs, None)
    low, high = least.peak_bytes, best.peak_bytes
    if least.moved_bytes <= free_bytes:
        return least
    while high - low > max(1, best.peak_bytes // 50):
        middle = (low + high) // 2
        plan = plan_spills(values, length, outputs, middle)
        if plan.moved_bytes <= free_bytes:
            best, high = plan, middle
        else:
            low = middle
    return best
