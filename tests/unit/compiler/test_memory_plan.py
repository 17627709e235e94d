"""The memory plan adds up what a Program keeps, moves and computes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cerebras_tensorflow.compiler.memory_plan import plan_memory
from cerebras_tensorflow.graph.nodes import GraphDef
from cerebras_tensorflow.graph.program import Program, Residence, WeightSpec

KERNEL = WeightSpec("kernel", "float32", (1000, 250), 1_000_000)
TABLE = WeightSpec("table", "float32", (10**6,), 4_000_000)
BIAS = WeightSpec("bias", "float32", (250,), 1000)
VALUE = WeightSpec("layer/MatMul", "float32", (500,), 2000)
STREAMED = Program(
    mode="weight_streaming",
    graph_def=GraphDef(),
    step_node="cs_step",
    streamed=(KERNEL, TABLE),
    resident=(BIAS,),
    window_bytes=4_000_000,
    order=("a", "b", "c"),
    spilled=(VALUE,),
    value_curve=(10, 7000, 20),
    held_curve=(64, 4_000_000, 4_000_900),
    overhead_bytes=300,
)


def test_a_streamed_step_has_its_window_in_memory_and_its_weights_and_spilled_values_in_the_store() -> None:
    plan = plan_memory(STREAMED)
    assert (plan.resident_bytes, plan.window_bytes, plan.activation_bytes, plan.overhead_bytes) == (
        1000, 4_000_000, 7000, 300,
    )  # fmt: skip
    assert (plan.store_bytes, plan.spilled_bytes) == (5_002_000, 2000)
    assert plan.peak_bytes == 1000 + 4_000_000 + 7000 + 300


def test_weights_in_host_memory_all_count_and_there_is_no_store() -> None:
    plan = plan_memory(replace(STREAMED, residence=Residence.HOST_MEMORY, spilled=()))
    assert plan.resident_bytes == 5_001_000
    assert (plan.window_bytes, plan.store_bytes, plan.spilled_bytes) == (0, 0, 0)
    assert plan.peak_bytes == 5_001_000 + 7000 + 300


def test_a_mapped_store_is_in_memory_too() -> None:
    plan = plan_memory(replace(STREAMED, residence=Residence.MAPPED_FILE, spilled=()))
    assert (plan.resident_bytes, plan.window_bytes, plan.store_bytes) == (5_001_000, 0, 5_000_000)


def test_a_pipelined_step_keeps_all_its_variables() -> None:
    plan = plan_memory(Program("pipelined", GraphDef(), None, (), (KERNEL, TABLE, BIAS), value_curve=(5, 3)))
    assert plan.peak_bytes == 5_001_000 + 5
    assert (plan.window_bytes, plan.store_bytes) == (0, 0)


@pytest.mark.parametrize("curve, peak", [((), 0), ((4, 9, 9, 1), 9)])
def test_values_count_at_the_busiest_op(curve: tuple[int, ...], peak: int) -> None:
    assert plan_memory(replace(STREAMED, value_curve=curve)).activation_bytes == peak
