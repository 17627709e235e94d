"""The estimate of a CS-2 follows from the schedule's bytes, the step's operations and the published figures."""

from __future__ import annotations

import pytest

from cerebras_tensorflow.compiler.estimate import UTILIZATION, estimate
from cerebras_tensorflow.graph.nodes import GraphDef
from cerebras_tensorflow.graph.program import Event, Program, WeightSpec
from cerebras_tensorflow.system import facts

LINK = facts.IO_BYTES_PER_S.value
WEIGHT = WeightSpec("w", "float32", (1000, 250), 10**6)
SLOT = WeightSpec("w/Adam", "float32", (1000, 250), 10**6)


def program(*events: Event) -> Program:
    return Program("weight_streaming", GraphDef(), None, (WEIGHT, SLOT), (), events)


def test_pipelined_mode_sends_only_the_batch() -> None:
    result = estimate(Program("pipelined", GraphDef(), None, (), ()), 8, 3000, 6e12)
    assert result.transmitted_bytes == 3000
    assert result.transmission_s == pytest.approx(3000 / LINK)
    assert result.compute_s == pytest.approx(6e12 / (facts.HALF_PRECISION_FLOPS.value * UTILIZATION))


def test_every_load_crosses_the_links_and_each_trained_weight_sends_one_gradient() -> None:
    events = (
        Event("load", 0, "forward", 10**6, 0, 1),
        Event("load", 0, "backward", 10**6, 5, 6),
        Event("update", 0, "update", 10**6, 7, 7),
        Event("update", 1, "update/slot", 10**6, 7, 7),
    )
    result = estimate(program(*events), 8, 3000, 0)
    # Twice the weight and once its gradient; the optimizer's slot stays outside the wafer.
    assert result.transmitted_bytes == 3 * 10**6 + 3000


def test_slots_that_an_optimizer_of_assigns_reads_stay_outside_the_wafer() -> None:
    events = (
        Event("load", 0, "forward", 10**6, 0, 1),
        Event("load", 1, "slot", 10**6, 7, 7),
        Event("update", 0, "update", 10**6, 8, 8),
        Event("update", 1, "update/slot", 10**6, 8, 8),
    )
    assert estimate(program(*events), 8, 3000, 0).transmitted_bytes == 2 * 10**6 + 3000


def test_rows_that_are_gathered_count_their_gradient_only() -> None:
    events = (Event("gather", 0, "rows", 0, 0, 0), Event("update", 0, "update", 10**6, 7, 7))
    assert estimate(program(*events), 1, 0, 0).transmitted_bytes == 10**6


def test_moves_and_computation_overlap() -> None:
    slow_links = estimate(program(Event("load", 0, "forward", 10**6, 0, 1)), 4, 0, 1.0)
    assert slow_links.step_s == slow_links.transmission_s > slow_links.compute_s
    assert slow_links.samples_per_s == pytest.approx(4 / slow_links.transmission_s)
    slow_compute = estimate(program(), 4, 1, 1e15)
    assert slow_compute.step_s == slow_compute.compute_s
    assert slow_compute.compute_samples_per_s == pytest.approx(4 / slow_compute.compute_s)
    assert slow_compute.transmission_samples_per_s > slow_compute.compute_samples_per_s


def test_an_empty_step_has_rate_zero() -> None:
    result = estimate(program(), 4, 0, 0)
    assert (result.samples_per_s, result.compute_samples_per_s, result.transmission_samples_per_s) == (0, 0, 0)


def test_assumptions_are_marked_as_assumed_or_derived() -> None:
    compute, links = estimate(program(), 1, 1, 1).assumptions
    assert "30% (assumed)" in compute and "(derived)" in compute
    assert f"{LINK:.3g} B/s ({facts.IO_BYTES_PER_S.status})" in links
