"""Spilling reaches the limit or the minimum possible, and never spills a value while an op needs it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from cerebras_tensorflow.compiler.memory.liveness import Value, find_values
from cerebras_tensorflow.compiler.memory.spilling import SpillPlan, plan_spills
from tests.unit.compiler.op_lists import Op, OpList, drawn_ops, op_list, simulate


def plan(step: OpList, limit: int | None, min_bytes: int = 1) -> SpillPlan:
    values = find_values(step.table, step.order, step.outputs)
    return plan_spills(values, len(step.order), step.outputs, limit, min_bytes)


def spilled(step: OpList, limit: int | None, min_bytes: int = 1) -> list[str]:
    return [str(spill.endpoint) for spill in plan(step, limit, min_bytes).spills]


def idle(prefix: str, count: int) -> list[Op]:
    """Ops that take and make nothing."""
    return [Op(f"{prefix}{number}") for number in range(count)]


def stacked(late: Sequence[str] = ("c", "b", "a")) -> OpList:
    """Three values made one after the other, and taken in the given order: forward and backward of three layers."""
    ops = [Op("a", (), (8,)), *idle("x", 3), Op("b", (), (8,)), *idle("y", 3), Op("c", (), (8,)), *idle("z", 3)]
    for name in late:
        ops += [Op(f"use_{name}", (name,)), *idle(f"after_{name}", 3)]
    return op_list(ops)


def test_without_a_limit_nothing_is_spilled() -> None:
    step = stacked()
    assert plan(step, None).spills == ()
    assert plan(step, None).curve.tolist() == simulate(step)


def test_nothing_is_spilled_where_the_values_fit() -> None:
    assert spilled(stacked(), 24) == []


def test_the_value_with_the_furthest_next_use_is_spilled_first() -> None:
    assert spilled(stacked(("c", "b", "a")), 16) == ["a"]
    # Memory runs out when c is made, so c itself cannot be spilled.
    assert spilled(stacked(("a", "b", "c")), 16) == ["b"]
    assert spilled(stacked(("a", "c", "b")), 16) == ["b"]
    assert spilled(stacked(("b", "c", "a")), 16) == ["a"]


def test_of_two_equally_far_values_the_larger_is_spilled_first() -> None:
    ops = [Op("a", (), (5,)), Op("b", (), (8,)), Op("c", (), (6,)), *idle("x", 4), Op("end", ("a", "b", "c"))]
    chosen = plan(op_list(ops), 11)
    # The last op needs all three, so the peak cannot be lower.
    assert [str(spill.endpoint) for spill in chosen.spills][:1] == ["b"]
    assert chosen.peak_bytes == 19


def test_spills_come_in_the_order_in_which_they_are_needed_again() -> None:
    chosen = plan(stacked(), 0)
    assert [str(spill.endpoint) for spill in chosen.spills] == ["c", "b", "a"]
    assert chosen.moved_bytes == 2 * 24
    assert chosen.peak_bytes == 8
    assert [[use.user for use in spill.late] for spill in chosen.spills] == [["use_c"], ["use_b"], ["use_a"]]


def test_a_value_waits_in_the_widest_stretch_between_two_of_its_uses() -> None:
    step = op_list([Op("a", (), (8,)), *idle("x", 3), Op("b", ("a",)), *idle("y", 5), Op("c", ("a",)), Op("d", ("a",))])
    (spill,) = plan(step, 0).spills
    assert [use.user for use in spill.late] == ["c", "d"]
    assert plan(step, 0).curve.tolist() == [8] * 5 + [0] * 5 + [8, 8]


def test_a_value_that_is_used_again_soon_is_not_spilled() -> None:
    assert spilled(op_list([Op("a", (), (8,)), Op("x"), Op("b", ("a",)), Op("y"), Op("c", ("a",))]), 0) == []


def test_small_values_are_not_spilled() -> None:
    ops = [Op("a", (), (7,)), Op("b", (), (8,)), *idle("x", 4), Op("end", ("a", "b"))]
    assert spilled(op_list(ops), 0, min_bytes=8) == ["b"]


@pytest.mark.parametrize("unknown", ["a", "flat"])
def test_values_with_an_unknown_shape_are_not_spilled(unknown: str) -> None:
    ops = [Op("a", (), (8,)), Op("flat", ("a",), (8,), "Reshape"), *idle("x", 4), Op("end", ("flat",))]
    assert spilled(op_list(ops), 0) == ["a"]
    assert spilled(op_list(ops, [unknown]), 0) == []


def test_values_made_or_used_in_a_branch_are_not_spilled() -> None:
    ops = [
        Op("taken", (), (1,)),
        Op("into", (), (8,)),
        *idle("x", 4),
        Op("enter", ("into", "taken"), (8, 8), "Switch"),
        Op("inside", ("enter:1",), (8,)),
        *idle("y", 4),
        Op("further", ("inside",), (8,)),
        Op("leave", ("enter", "further"), (8,), "Merge"),
        Op("after", ("leave",), (8,)),
        *idle("z", 4),
        Op("end", ("after",)),
    ]
    assert spilled(op_list(ops), 0) == ["after"]


def test_late_uses_by_a_reshape_come_with_their_shape() -> None:
    ops = [Op("a", (), (8,)), Op("flat", ("a",), (8,), "Reshape"), *idle("x", 4), Op("b", ("flat",)), Op("c", ("a",))]
    (spill,) = plan(op_list(ops), 0).spills
    assert {str(endpoint): shape for endpoint, shape in spill.shapes.items()} == {"a": (8,), "flat": (8,)}
    assert [(use.user, str(use.endpoint)) for use in spill.late] == [("b", "flat"), ("c", "a")]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(ops=drawn_ops(), limit=st.integers(0, 40), min_bytes=st.integers(1, 4))
def test_drawn_lists_stay_within_the_limit_or_at_the_least(ops: list[Op], limit: int, min_bytes: int) -> None:
    step = op_list(ops)
    chosen, least = plan(step, limit, min_bytes), plan(step, 0, min_bytes)
    assert chosen.peak_bytes == least.peak_bytes if chosen.peak_bytes > limit else least.peak_bytes <= chosen.peak_bytes
    if max(simulate(step)) <= limit:
        assert not chosen.spills
    values = {value.endpoint: value for value in find_values(step.table, step.order, step.outputs)}
    expected = np.array(simulate(step))
    for spill in chosen.spills:
        value = values[spill.endpoint]
        begin = _last_before(value, spill.late[0].position)
        assert spill.late == tuple(use for use in value.uses if use.position > begin)
        assert spill.num_bytes == value.num_bytes >= min_bytes
        assert spill.late[0].position - begin > 2
        expected[begin + 1 : spill.late[0].position] -= spill.num_bytes
    assert len({spill.endpoint for spill in chosen.spills}) == len(chosen.spills)
    assert chosen.curve.tolist() == expected.tolist()
    assert expected.min() >= 0


@settings(max_examples=100, deadline=None, derandomize=True)
@given(ops=drawn_ops())
def test_with_a_limit_of_zero_nothing_more_could_go(ops: list[Op]) -> None:
    step = op_list(ops)
    chosen = {spill.endpoint for spill in plan(step, 0).spills}
    # Values left at the position of peak memory have no gap there in which they could be spilled.
    curve = plan(step, 0).curve
    worst = int(curve.argmax())
    for value in find_values(step.table, step.order, step.outputs):
        if value.endpoint not in chosen and value.made < worst < value.last:
            places = [value.made, *(use.position for use in value.uses)]
            width, begin = max((after - before, before) for before, after in pairwise(places))
            assert not (width > 2 and begin < worst < begin + width)


def _last_before(value: Value, position: int) -> int:
    return max(place for place in (value.made, *(use.position for use in value.uses)) if place < position)
