"""The compiler's reports say what moves, what stays in memory, and that a CS-2's speed is simulated."""

from __future__ import annotations

from dataclasses import replace

from cerebras_tensorflow.compiler.memory_plan import MemoryPlan
from cerebras_tensorflow.compiler.report import compile_report_text, memory_plan_text, schedule_text
from cerebras_tensorflow.graph.nodes import GraphDef
from cerebras_tensorflow.graph.program import Event, Note, Program, Residence, WeightSpec
from cerebras_tensorflow.system.wafer.simulate import Workload, simulate
from cerebras_tensorflow.system.wafer.transformers import LLAMA_7B

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
    in_memory = memory_plan_text(replace(program(*EVENTS), residence=Residence.HOST_MEMORY), plan)
    assert "not needed: all weights stay in memory" in in_memory and "budget" not in in_memory


def test_the_compile_report_has_the_published_rows_and_is_marked_simulated() -> None:
    step = simulate(LLAMA_7B.network(), Workload("weight_streaming", 99, num_csx=2, release="2.1"))
    text = compile_report_text(step)
    assert text.startswith("Estimated Overall Performance (simulated: a model of a CS-2, not a measurement)")
    assert f"\nSamples/s: {step.samples_per_s:.1f}\nCompute Samples/s: " in text
    assert "\nTransmission Samples/s: " in text and "\nRange: " in text
    assert f"One step of 198 samples on 2 CS-2, in {step.micro_batches} micro-batches" in text
    assert f"hosts must make {step.samples_per_s:.3g} samples/s, " in text and "for 2 systems" in text
    assert "(fitted, 0.41 to 0.62)" in text and "(derived)" in text
    assert text.count("  block_") + text.count("  output") + text.count("  embedding") >= 10  # the slowest layers


def test_the_compile_report_names_loops_of_unknown_length() -> None:
    network = replace(LLAMA_7B.network(), unknown_loops=("decode/while", "other"))
    text = compile_report_text(simulate(network, Workload("weight_streaming", 99)))
    assert "does not tell how often the loop decode/while (and 1 more) runs" in text


def test_a_rate_below_a_tenth_is_not_rounded_to_zero() -> None:
    slow = replace(simulate(LLAMA_7B.network(), Workload("weight_streaming", 1)), step_s=32.0)
    assert "\nSamples/s: 0.031\n" in compile_report_text(slow)
