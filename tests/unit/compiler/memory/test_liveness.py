"""Values live from the op that makes them to their last use, also through reshapes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from cerebras_tensorflow.compiler.memory.liveness import Use, Value, find_values, memory_curve
from cerebras_tensorflow.graph.nodes import Endpoint
from tests.unit.compiler.op_lists import Op, OpList, drawn_ops, op_list, simulate


def values_of(step: OpList) -> dict[str, Value]:
    return {str(value.endpoint): value for value in find_values(step.table, step.order, step.outputs)}


def curve_of(*ops: Op) -> list[int]:
    step = op_list(ops)
    return memory_curve(find_values(step.table, step.order, step.outputs), len(ops)).tolist()


def test_each_output_that_an_op_takes_is_a_value_with_its_uses_in_order() -> None:
    values = values_of(
        op_list([Op("a", (), (4, 6, 8)), Op("b", ("a:1",), (2,)), Op("c", ("a", "a:1", "b")), Op("d", ("^a",))])
    )
    assert set(values) == {"a", "a:1", "b"}  # nothing takes a:2
    assert values["a:1"].num_bytes == 6
    assert [(use.position, use.user) for use in values["a:1"].uses] == [(1, "b"), (2, "c")]
    assert (values["a"].made, values["a"].last) == (0, 2)


def test_a_use_of_a_reshape_is_a_use_of_its_input() -> None:
    values = values_of(
        op_list(
            [
                Op("a", (), (8,)),
                Op("flat", ("a",), (8,), "Reshape"),
                Op("same", ("flat",), (8,), "Identity"),
                Op("b", ("same",), (1,)),
                Op("c", ("a", "b")),
            ]
        )
    )
    assert set(values) == {"a", "b"}
    assert values["a"].uses == (Use(3, "b", Endpoint("same", 0)), Use(4, "c", Endpoint("a", 0)))


@pytest.mark.parametrize("op", ["ReadVariableOp", "Const", "Placeholder", "PyFunc"])
def test_weights_constants_and_inputs_are_not_values_of_the_step(op: str) -> None:
    step = op_list(
        [Op("w", (), (8,), op), Op("flat", ("w",), (8,), "Reshape"), Op("a", ("flat",), (1,)), Op("b", ("a",))]
    )
    assert set(values_of(step)) == {"a"}


def test_ops_without_known_outputs_make_nothing() -> None:
    step = op_list([Op("a", (), (8,)), Op("b", ("a",), (4,)), Op("c", ("b",))])
    assert [str(value.endpoint) for value in find_values(step.table, step.order, {"a": step.outputs["a"]})] == ["a"]


def test_values_made_or_used_inside_a_branch_are_conditional() -> None:
    values = values_of(
        op_list(
            [
                Op("taken", (), (1,)),
                Op("a", (), (8,)),
                Op("outside", ("a",), (8,)),
                Op("enter", ("a", "taken"), (8, 8), "Switch"),
                Op("inside", ("enter:1",), (8,)),
                Op("further", ("inside", "^enter"), (8,)),
                Op("leave", ("enter", "further"), (8,), "Merge"),
                Op("after", ("leave",), (8,)),
                Op("end", ("after", "outside")),
            ]
        )
    )
    conditional = {name for name, value in values.items() if value.is_conditional}
    assert conditional == {"taken", "a", "enter", "enter:1", "inside", "further", "leave"}
    assert set(values) - conditional == {"after", "outside"}


def test_values_made_in_the_condition_of_a_loop_are_conditional() -> None:
    values = values_of(
        op_list(
            [
                Op("a", (), (8,)),
                Op("enter", ("a",), (8,), "Enter"),
                Op("next", ("body",), (8,), "NextIteration"),
                Op("merge", ("enter", "next"), (8,), "Merge"),
                Op("mean", ("merge",), (4,)),
                Op("less", ("mean",), (1,)),
                Op("go", ("less",), (1,), "LoopCond"),
                Op("switch", ("merge", "go"), (8, 8), "Switch"),
                Op("body", ("switch:1",), (8,)),
                Op("leave", ("switch",), (8,), "Exit"),
                Op("after", ("leave",), (8,)),
                Op("end", ("after",)),
            ]
        )
    )
    assert {name for name, value in values.items() if not value.is_conditional} == {"after"}


def test_a_value_counts_from_its_op_to_its_last_use() -> None:
    assert curve_of(Op("a", (), (8,)), Op("b"), Op("c", ("a",)), Op("d")) == [8, 8, 8, 0]


def test_a_result_reuses_the_buffer_of_a_dead_input_of_the_same_size() -> None:
    assert curve_of(Op("a", (), (8,)), Op("b", ("a",), (8,)), Op("c", ("b",))) == [8, 8, 8]
    assert curve_of(Op("a", (), (8,)), Op("b", ("a",), (7,)), Op("c", ("b",))) == [8, 15, 7]
    assert curve_of(Op("a", (), (8,)), Op("b", ("a",), (8,)), Op("c", ("b", "a"))) == [8, 16, 16]


def test_only_one_result_reuses_the_buffer_of_an_input() -> None:
    assert curve_of(Op("a", (), (8,)), Op("b", ("a",), (8, 8)), Op("c", ("b", "b:1"))) == [8, 16, 16]


def test_a_reshape_keeps_its_input_alive_and_needs_no_buffer() -> None:
    ops = [Op("a", (), (8,)), Op("flat", ("a",), (8,), "Reshape"), Op("b", ("a",), (1,)), Op("c", ("flat", "b"))]
    assert curve_of(*ops) == [8, 8, 9, 9]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(ops=drawn_ops())
def test_the_curve_is_that_of_a_run_through_the_ops(ops: list[Op]) -> None:
    step = op_list(ops)
    values = find_values(step.table, step.order, step.outputs)
    assert memory_curve(values, len(ops)).tolist() == simulate(step)
