"""The plan of the bytes between CSX."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cerebras_tensorflow.graph.micro_batches import EVERY, Gradient, Mark, MicroBatches
from cerebras_tensorflow.graph.nodes import GraphDef
from cerebras_tensorflow.graph.program import Event, Program, WeightSpec
from cerebras_tensorflow.runtime.csx.wire import plan_wire

SIZE = 1000


def program(num_csx: int, has_owners: bool) -> Program:
    """A weight, its total, and a slot for each CSX; two passes over the weights in each of 4 micro-batches."""
    kinds = [spec for rank in range(num_csx) for spec in (f"w{rank}", f"w{rank}/Adam", f"total{rank}")]
    owners = tuple(rank if has_owners else EVERY for rank in range(num_csx) for _ in range(3))
    gradients = tuple(
        Gradient(Mark(f"w{rank}", f"g{rank}"), f"sink{rank}", "float32", (), 3 * rank + 2, (), owners[3 * rank])
        for rank in range(num_csx)
    )
    loads = [Event("load", 3 * rank, f"load{rank}", SIZE, at, at) for at in (0, 1) for rank in range(num_csx)]
    updates = [Event("update", 0, "update", SIZE, 9, 9)]
    return Program(
        mode="weight_streaming",
        graph_def=GraphDef(),
        step_node=None,
        streamed=tuple(WeightSpec(name, "float32", (SIZE // 4,), SIZE) for name in kinds),
        resident=(),
        events=(*loads, *updates),
        micro_batches=MicroBatches(4, gradients, (), num_first=5, num_csx=num_csx),
        owners=owners,
    )


@pytest.mark.parametrize("num_csx", [2, 4])
def test_each_pass_receives_what_others_own_and_gradients_go_to_their_owners(num_csx: int) -> None:
    weights = num_csx * SIZE
    passes = 2 * (4 // num_csx)
    share = (num_csx - 1) / num_csx
    planned = plan_wire(program(num_csx, has_owners=True), 0)
    assert planned.received == share * weights * (passes + 1)
    assert planned.sent == share * weights * (passes + 1)


@pytest.mark.parametrize("num_csx", [2, 4])
def test_totals_that_every_csx_needs_take_an_all_reduce(num_csx: int) -> None:
    planned = plan_wire(program(num_csx, has_owners=False), 0)
    gradients = num_csx * SIZE
    assert planned.sent == planned.received == pytest.approx(2 * (num_csx - 1) / num_csx * gradients)


def test_rows_of_an_embedding_count_in_each_micro_batch() -> None:
    one = program(2, has_owners=True)
    assert one.micro_batches is not None
    gather = Event("gather", 0, "rows", 0, 0, 0, row_bytes=40)
    assert plan_wire(replace(one, events=(*one.events, gather)), 0).sent == plan_wire(one, 0).sent + 2 * 40
    plan = MicroBatches(
        4, (Gradient(Mark("w0", "g0", "rows0"), "sink0", "float32", (), owner=0),), (), num_first=5, num_csx=2
    )
    sparse = replace(one, events=(gather,), micro_batches=plan)
    assert [plan_wire(sparse, rank).sent for rank in (0, 1)] == [2 * 40, 40]  # rows; the sum of two micro-batches
    many = replace(sparse, events=(replace(gather, row_bytes=3 * SIZE),))  # more tokens than rows
    assert [plan_wire(many, rank).sent for rank in (0, 1)] == [2 * SIZE, SIZE]


def test_one_csx_sends_nothing() -> None:
    one = program(1, has_owners=True)
    assert plan_wire(replace(one, owners=(0,) * 3), 0).sent == 0
