"""A budget is kept, or refused with the smallest sufficient one; without a budget, spilling adds little."""

from __future__ import annotations

import re
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from cerebras_tensorflow.compiler.memory.budget import Footprint, Traffic, budget_error, overhead_bytes, spill_within
from cerebras_tensorflow.compiler.memory.liveness import find_values
from cerebras_tensorflow.compiler.memory.spilling import SpillPlan
from cerebras_tensorflow.compiler.options import StreamingOptions
from cerebras_tensorflow.errors import CompileError
from cerebras_tensorflow.units import parse_size
from tests.unit.compiler.op_lists import Op, OpList, op_list

MEGABYTE = 10**6
TRAFFIC = Traffic(window_bytes=64 * MEGABYTE, slice_bytes=4 * MEGABYTE, weights=(16 * MEGABYTE,) * 8)


def layers(count: int = 20, num_bytes: int = 32 * MEGABYTE) -> OpList:
    """A forward and a backward pass: each layer's value waits for its gradient."""
    ops = [Op("layer_0", (), (num_bytes,))]
    for number in range(1, count):
        ops.append(Op(f"layer_{number}", (f"layer_{number - 1}",), (num_bytes,)))
    gradient = f"layer_{count - 1}"
    for number in reversed(range(count)):
        ops.append(Op(f"gradient_{number}", (f"layer_{number}", gradient), (num_bytes,)))
        gradient = f"gradient_{number}"
    return op_list([*ops, Op("end", (gradient,))])


def spill(step: OpList, traffic: Traffic = TRAFFIC, **options: Any) -> SpillPlan:
    values = find_values(step.table, step.order, step.outputs)
    chosen = spill_within(values, len(step.order), step.outputs, traffic, StreamingOptions(**options))
    budget = options.get("memory_budget")
    if budget is not None:
        overhead = overhead_of(step, chosen, traffic)
        parts = Footprint(options.get("process_bytes", 0), 0, chosen.peak_bytes, traffic.peak_bytes, overhead)
        if parts.excess_bytes(budget) > 0:
            assert chosen.is_least
            raise budget_error(budget, parts)
    return chosen


def overhead_of(step: OpList, chosen: SpillPlan, traffic: Traffic) -> int:
    values = find_values(step.table, step.order, step.outputs)
    return overhead_bytes(values, chosen.peak_bytes, traffic, len(step.order), chosen.moved_bytes // 2)


def needed_bytes(step: OpList, chosen: SpillPlan, traffic: Traffic = TRAFFIC) -> int:
    return traffic.peak_bytes + chosen.peak_bytes + overhead_of(step, chosen, traffic)


def smallest_budget(step: OpList, **options: Any) -> str:
    """The smallest sufficient budget, as named by the error for a budget of 0."""
    with pytest.raises(CompileError) as raised:
        spill(step, memory_budget=0, **options)
    match = re.search(r"needs at least ([\d.]+ [kMGT]?B):", str(raised.value))
    assert match
    return match[1]


def test_with_a_large_budget_nothing_is_spilled() -> None:
    assert spill(layers(), memory_budget=10_000 * MEGABYTE).spills == ()


@pytest.mark.parametrize("megabytes", [700, 800, 900, 1000])
def test_the_step_and_the_process_stay_within_the_budget(megabytes: int) -> None:
    process_bytes = 100 * MEGABYTE
    chosen = spill(layers(), memory_budget=megabytes * MEGABYTE, process_bytes=process_bytes)
    assert chosen.spills
    assert process_bytes + needed_bytes(layers(), chosen) <= megabytes * MEGABYTE


def test_a_smaller_budget_spills_more() -> None:
    moved = [spill(layers(), memory_budget=megabytes * MEGABYTE).moved_bytes for megabytes in (600, 700, 800, 900)]
    assert sorted(moved, reverse=True) == moved and len(set(moved)) == 4


def test_a_budget_too_small_is_refused_with_its_parts() -> None:
    with pytest.raises(CompileError) as raised:
        spill(layers(), memory_budget=300 * MEGABYTE, process_bytes=100 * MEGABYTE)
    text = str(raised.value)
    assert text.startswith("memory_budget is 300.0 MB, and this step needs at least ")
    assert "100.0 MB for the process and its batches, 64.0 MB for weights on the move, 64.0 MB for the values" in text
    assert "Raise memory_budget to that, set micro_batch_size, or make the batch or the sequence smaller" in text


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    count=st.integers(2, 30), num_bytes=st.integers(1, 10**9), process_bytes=st.integers(0, 10**9),
    min_spill_bytes=st.sampled_from([1, 256 * 1024, 2 * 10**9]),
)  # fmt: skip
def test_the_budget_that_a_refusal_names_is_enough_and_the_smallest(
    count: int, num_bytes: int, process_bytes: int, min_spill_bytes: int
) -> None:
    step = layers(count, num_bytes)
    options = {"process_bytes": process_bytes, "min_spill_bytes": min_spill_bytes}
    text = smallest_budget(step, **options)
    chosen = spill(step, memory_budget=parse_size(text), **options)
    assert process_bytes + needed_bytes(step, chosen) <= parse_size(text)
    one_less = parse_size(text) - parse_size(f"0.1 {text.split()[1]}")  # in the last digit that it shows
    with pytest.raises(CompileError, match="needs at least"):
        spill(step, memory_budget=one_less - 1, **options)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(share=st.floats(0, 3), count=st.integers(1, 30), weights=st.integers(0, 20))
def test_without_a_budget_spilling_moves_at_most_its_share(share: float, count: int, weights: int) -> None:
    traffic = Traffic(64 * MEGABYTE, 4 * MEGABYTE, (16 * MEGABYTE,) * weights)
    step = layers(count)
    chosen, unspilled = spill(step, traffic, spill_share=share), spill(step, traffic, spill_share=0)
    assert chosen.moved_bytes <= share * traffic.step_bytes
    assert not unspilled.spills
    assert chosen.peak_bytes <= unspilled.peak_bytes


def test_without_a_budget_more_spilling_lowers_the_peak() -> None:
    peaks = [spill(layers(), spill_share=share).peak_bytes for share in (0, 0.5, 1, 100)]
    assert sorted(peaks, reverse=True) == peaks and len(set(peaks)) == 4
    assert peaks[-1] == spill(layers(), memory_budget=parse_size(smallest_budget(layers()))).peak_bytes


def test_one_weight_larger_than_the_window_counts_as_a_whole() -> None:
    traffic = Traffic(64 * MEGABYTE, 4 * MEGABYTE, (16 * MEGABYTE, 200 * MEGABYTE))
    assert traffic.peak_bytes == 200 * MEGABYTE
    assert traffic.step_bytes == 4 * 216 * MEGABYTE


def test_slices_are_no_larger_than_the_weights() -> None:
    assert Traffic(64, 1000, (10, 20)).update_bytes == 6 * 20
    assert Traffic(64, 8, (10, 20)).update_bytes == 6 * 8
    assert Traffic(64, 8, ()).update_bytes == 0
