"""The compiler's reports say what moves, what stays in memory, and that a CS-2's speed is simulated."""

from __future__ import annotations

from cerebras_tensorflow.compiler.estimate import Estimate
from cerebras_tensorflow.compiler.memory_plan import MemoryPlan
from cerebras_tensorflow.compiler.report import compile_report_text, memory_plan_text, schedule_text
from cerebras_tensorflow.graph.nodes import GraphDef
from cerebras_tensorflow.graph.program import Event, Note, Program, WeightSpec

KERNEL = WeightSpec("layer/kernel", "float32", (1000, 250), 10**6)
TABLE = WeightSpec("table", "float32", (10**6,), 4 * 10**6)
BIAS = WeightSpec("layer/bias", "float32", (250,), 1000)
EVENTS = (
    Event("gather", 1, "lookup", 0, 1, 1),
    Event("load", 0, "load", 10**6, 2, 3),
    Event("update", 0, "update", 10**6, 7, 7.5),
)


def program(*events: Event, notes: tuple[Note, ...] = ()) -> Program:
    mode = "weight_streaming" if events else "pipelined"
    return Program(mode, GraphDef(), None, (KERNEL, TABLE) if events else (), (BIAS,), events, 2 * 10**6, (), notes)


def test_the_schedule_has_a_line_for_each_move_in_order() -> None:
    lines = schedule_text(program(*EVENTS)).splitlines()
    assert lines[0] == "Schedule (weight_streaming)"
    # The load once, the update in and out.
    assert "3 moves of 2 weights; 3.0 MB read and written in a step" in lines[2]
    assert "when the moves above it have been used, except for the last 2.0 MB" in "\n".join(lines)
    assert [line.split() for line in lines[-3:]] == [
        ["0", "gather", "rows", "1", "1", "table"],
        ["1", "load", "1.0", "MB", "2", "3", "layer/kernel"],
        ["2", "update", "1.0", "MB", "7", "7", "layer/kernel"],
    ]


def test_the_schedule_of_a_pipelined_program_says_that_nothing_moves() -> None:
    assert "Nothing moves during a step: all 1 variables (1.0 kB) are resident." in schedule_text(program())


def test_the_memory_plan_adds_up_and_lists_the_notes() -> None:
    plan = MemoryPlan(
        resident_bytes=1000,
        window_bytes=2 * 10**6,
        activation_bytes=4 * 10**6,
        overhead_bytes=10**6,
        store_bytes=5 * 10**6,
        spilled_bytes=10**6,
    )
    text = memory_plan_text(program(*EVENTS, notes=(Note("table", 40, "op a (If) takes it as a whole"),)), plan)
    peak = next(line for line in text.splitlines() if line.startswith("peak"))
    assert "7.0 MB" in peak and plan.peak_bytes == 7_001_000
    assert text.endswith("Notes\n- table stays in memory (40 B): op a (If) takes it as a whole\n")
    assert "Notes" not in memory_plan_text(program(), plan)


def test_the_compile_report_has_the_published_rows_and_is_marked_simulated() -> None:
    text = compile_report_text(Estimate(10, 2e12, 3 * 10**9, 0.001, 0.02, ("links: 1.5e+11 B/s (derived)",)))
    assert "Samples/s: 500.0\nCompute Samples/s: 10000.0\nTransmission Samples/s: 500.0\n" in text
    assert text.startswith("Estimated Overall Performance (simulated: a model of a CS-2, not a measurement)")
    assert "One step of 10 samples: 2.000e+12 floating-point operations, 3.0 GB over the links, 20.0 ms (sim" in text
    assert text.endswith("Assumptions:\n- links: 1.5e+11 B/s (derived)\n")


def test_a_rate_below_a_tenth_is_not_rounded_to_zero() -> None:
    text = compile_report_text(Estimate(1, 1, 1, 1.0, 32.0, ()))
    assert "\nSamples/s: 0.031\n" in text
