"""Adds up the memory of a step, and decides how much of it is spilled.

    peak = the process without the step
         + variables that stay
         + streamed weights: the window, or the largest weight if that is larger
         + values between ops
         + overhead (`overhead_bytes`): kernels, queues, allocators and the graph

Without a budget, values are spilled only while this adds little to the bytes that the weights move anyway. The peak
then hardly grows with the depth of a model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from cerebras_tensorflow.compiler.memory.liveness import Value
from cerebras_tensorflow.compiler.memory.spilling import SpillPlan, plan_spills
from cerebras_tensorflow.compiler.options import StreamingOptions
from cerebras_tensorflow.errors import MemoryBudgetError
from cerebras_tensorflow.graph.cost import Output
from cerebras_tensorflow.units import format_bytes, format_bytes_up

# Measured by scripts/bench/bench_streaming.py on GPT shapes from 10 million to 1.3 billion parameters.
# Session: its own memory and the scratch memory of kernels. Store: its queue, and the buffers that it keeps for reuse.
_SESSION_BYTES, _STORE_BYTES = 100_000_000, 128_000_000
# On a CPU with oneDNN, TensorFlow's allocator keeps freed memory in a pool. A value takes the smallest free piece that
# holds it. So the pool is larger than its content, and the largest value may not fit into any free piece.
_POOL_SHARE, _LARGEST_SHARE = 0.15, 0.25
# Without gates, ops run further ahead of the order, and more than one value of the largest size exists at a time.
_LARGEST_SHARE_IN_MEMORY = 2.0
# TensorFlow's and our objects for an op, from the compiler to the session's executor. GPT-2 of 2 to 24 layers, BERT and
# T5 took 7 to 19 kB; large models are nearer to 10.
_BYTES_PER_OP = 10_000
# Slices in memory at a time: one of each of an optimizer op's three variables, twice, since the op copies its inputs.
_SLICES = 6
# Share of a budget that a plan may fill. The rest covers the plan's error of a few percent.
_PLANNED_SHARE = 0.93
_MOVES_OF_A_WEIGHT = 4  # forward, backward, and to and from its update


@dataclass(frozen=True)
class Traffic:
    """The sizes of the weights that a step moves.

    Attributes:
        window_bytes: Bytes of weights in memory at a time. A larger weight is in memory alone.
        slice_bytes: Most bytes of a variable that an element-wise update has in memory.
        weights: Size of each streamed variable.
    """

    window_bytes: int
    slice_bytes: int
    weights: tuple[int, ...]

    @property
    def peak_bytes(self) -> int:
        """Most bytes of streamed weights in memory at a time."""
        return max(self.window_bytes, max(self.weights, default=0))

    @property
    def update_bytes(self) -> int:
        """Most bytes of slices that updates have in memory."""
        return _SLICES * min(self.slice_bytes, max(self.weights, default=0))

    @property
    def step_bytes(self) -> int:
        """Bytes that a step moves, roughly."""
        return _MOVES_OF_A_WEIGHT * sum(self.weights)


def overhead_bytes(
    values: Sequence[Value], peak_bytes: int, traffic: Traffic | None, num_ops: int, spilled_bytes: int = 0
) -> int:
    """Return the memory that a step takes in addition to its values and its weights.

    Args:
        values: Values of the step.
        peak_bytes: Most bytes of values at a time.
        traffic: Traffic of its weights. None: the weights stay in memory.
        num_ops: Number of ops of the step.
        spilled_bytes: Bytes of its spilled values.
    """
    largest = max((value.buffer_bytes for value in values), default=0)
    in_pool = peak_bytes + (traffic.update_bytes if traffic else 0)
    share = _LARGEST_SHARE if traffic else _LARGEST_SHARE_IN_MEMORY
    taken = in_pool - peak_bytes + _POOL_SHARE * in_pool + share * largest
    in_store = sum(traffic.weights) + spilled_bytes if traffic else 0
    return int(taken) + _SESSION_BYTES + graph_bytes(num_ops) + min(_STORE_BYTES, in_store)


def graph_bytes(num_ops: int) -> int:
    """Return the memory that the ops of a step take as objects, without their values."""
    return _BYTES_PER_OP * num_ops


def spill_within(
    values: Sequence[Value],
    length: int,
    outputs: Mapping[str, Sequence[Output]],
    traffic: Traffic,
    options: StreamingOptions,
    resident_bytes: int = 0,
    most_value_bytes: int | None = None,
) -> SpillPlan:
    """Choose what to spill. The caller checks the budget later, when all moves are known (Footprint).

    Args:
        values: Values of the step.
        length: Number of ops in the step's order.
        outputs: Outputs of each op.
        traffic: Traffic of the step's weights.
        options: The budget and the other options of spilling.
        resident_bytes: Bytes of the variables that stay in memory.
        most_value_bytes: Most bytes of values at a time under a budget. None: what the budget leaves.
    """
    plan = partial(plan_spills, values, length, outputs, min_bytes=options.min_spill_bytes)
    least = plan(0)
    if options.memory_budget is None:
        return _spill_little(plan, least, int(options.spill_share * traffic.step_bytes))
    taken = options.process_bytes + options.other_bytes + resident_bytes + traffic.peak_bytes
    usable = _PLANNED_SHARE * options.memory_budget - taken

    def limit(spilled_bytes: int) -> int:
        most = int((usable - overhead_bytes(values, 0, traffic, length, spilled_bytes)) / (1 + _POOL_SHARE))
        return most if most_value_bytes is None else min(most, most_value_bytes)

    unspilled = plan(None)
    if unspilled.peak_bytes <= limit(0):
        return unspilled
    most = limit(_STORE_BYTES)
    return plan(most) if most > least.peak_bytes else replace(least, is_least=True)


@dataclass(frozen=True)
class Footprint:
    """The memory of a step whose moves are known.

    Attributes:
        process_bytes: Memory of the process without the step.
        resident_bytes: Variables that stay in memory.
        value_bytes: Most bytes of values between ops.
        moved_bytes: Bytes that moves add to the values at the busiest op.
        overhead_bytes: Kernels, queues, allocators and the graph.
    """

    process_bytes: int
    resident_bytes: int
    value_bytes: int
    moved_bytes: int
    overhead_bytes: int

    @property
    def total_bytes(self) -> int:
        """The sum of all parts."""
        parts = (self.process_bytes, self.resident_bytes, self.value_bytes, self.moved_bytes, self.overhead_bytes)
        return sum(parts)

    @property
    def needed_bytes(self) -> int:
        """The smallest budget that the step fits into."""
        return math.ceil(self.total_bytes / _PLANNED_SHARE)

    def excess_bytes(self, memory_budget: int) -> int:
        """Return the bytes above the share of a budget that a plan may fill; 0 or less if the step fits."""
        return math.ceil(_PLANNED_SHARE * (self.needed_bytes - memory_budget))


def budget_error(memory_budget: int, least: Footprint) -> MemoryBudgetError:
    """Return the error for a budget that is too small.

    Args:
        memory_budget: The budget.
        least: The footprint with all spillable values spilled.
    """
    needed = least.needed_bytes
    return MemoryBudgetError(
        f"memory_budget is {format_bytes(memory_budget)}, and this step needs at least {format_bytes_up(needed)}: "
        f"{format_bytes(least.process_bytes)} for the process and its batches, {format_bytes(least.moved_bytes)} for "
        f"weights on the move, {format_bytes(least.value_bytes)} for the values of its largest ops with everything "
        f"else spilled, {format_bytes(least.resident_bytes)} for variables that stay, "
        f"{format_bytes(least.overhead_bytes)} for "
        "kernels, queues, allocators and the graph, plus a reserve. Raise memory_budget to that, set micro_batch_size, "
        "or make the batch or the sequence smaller",
        needed,
    )


def _spill_little(plan: Callable[[int | None], SpillPlan], least: SpillPlan, free_bytes: int) -> SpillPlan:
    """Return the plan with the lowest peak that moves at most `free_bytes`."""
    if least.moved_bytes <= free_bytes:
        return least
    best = plan(None)
    low, high = least.peak_bytes, best.peak_bytes
    while high - low > max(1, best.peak_bytes // 50):
        middle = (low + high) // 2
        tried = plan(middle)
        if tried.moved_bytes <= free_bytes:
            best, high = tried, middle
        else:
            low = middle
    return best
