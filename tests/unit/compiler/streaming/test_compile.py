"""Unusual graphs are streamed, or stay resident with a note; both modes agree in every bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, given, settings

from tests.unit.compiler.small_graphs import (
    EVERYTHING_SPILLED,
    ROWS,
    WIDTH,
    Outcome,
    build,
    compile_small,
    open_small,
    run_both,
    run_small,
    sgd,
    v1,
    weight,
)


def mean_square(value: Any) -> Any:
    return tf.reduce_mean(value * value)


def note_on(result: Outcome, name: str) -> str:
    (note,) = [note for note in result.program.notes if note.variable == name]
    return note.text


def test_a_variable_read_inside_a_loop_stays_resident_with_a_note() -> None:
    def model(x: Any, step: Any) -> tuple[Any, Any]:
        w = weight()
        _, y = v1.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, tf.tanh(tf.matmul(a, w))), [0, x])
        loss = mean_square(y)
        return loss, sgd(loss, step)

    result = run_both(model)
    assert not result.streamed
    assert "Enter" in note_on(result, "w")


def test_a_value_read_before_a_loop_and_used_inside_stays_resident_with_a_note() -> None:
    def model(x: Any, step: Any) -> tuple[Any, Any]:
        value = tf.convert_to_tensor(weight())
        _, y = v1.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, tf.tanh(tf.matmul(a, value))), [0, x])
        loss = mean_square(y)
        return loss, sgd(loss, step)

    result = run_both(model)
    assert not result.streamed
    assert "into a loop" in note_on(result, "w")


def test_random_numbers_inside_a_loop_differ_between_its_iterations() -> None:
    def model(x: Any, step: Any) -> tuple[Any, Any]:
        w = weight()
        draws = tf.TensorArray(tf.float32, 3, element_shape=[ROWS])
        _, draws = v1.while_loop(
            lambda i, _: i < 3, lambda i, a: (i + 1, a.write(i, tf.random.uniform([ROWS]))), [0, draws]
        )
        return draws.stack(), sgd(mean_square(tf.matmul(x, w)), step)

    result = run_both(model)
    assert len({row.tobytes() for output in result.outputs for row in output}) == 3 * len(result.outputs)


def test_control_dependencies_of_a_read_still_run() -> None:
    def model(x: Any, step: Any) -> tuple[Any, Any]:
        w = weight()
        count = v1.get_variable("count", [], initializer=v1.zeros_initializer(), trainable=False)
        with tf.control_dependencies([count.assign_add(1.0)]):
            loss = mean_square(tf.matmul(x, w.read_value()))
        return loss, sgd(loss, step)

    result = run_both(model, steps=3)
    assert result.streamed == {"w"}
    assert result.variables["count"] == 3


def test_control_dependencies_of_chained_reads_still_run() -> None:
    def model(x: Any, step: Any) -> tuple[Any, Any]:
        w, other = weight(), weight("other")
        count = v1.get_variable("count", [], initializer=v1.zeros_initializer(), trainable=False)
        with tf.control_dependencies([count.assign_add(1.0)]):
            first = tf.raw_ops.ReadVariableOp(resource=other.handle, dtype=tf.float32)
        with tf.control_dependencies([first]):
            loss = mean_square(tf.matmul(x, w.read_value()))
        return loss, sgd(loss, step)

    result = run_both(model, steps=3)
    assert result.variables["count"] == 3


def test_a_variable_read_after_its_update_gives_the_new_value() -> None:
    def model(x: Any, step: Any) -> tuple[Any, Any]:
        w = weight()
        loss = mean_square(tf.matmul(x, w))
        train = sgd(loss, step)
        with tf.control_dependencies([train]):
            return tf.reduce_sum(w.read_value()), train

    result = run_both(model)
    assert result.streamed == {"w"}
    assert result.outputs[-1] == pytest.approx(result.variables["w"].sum(), rel=1e-5)


def test_an_old_value_used_after_the_update_keeps_the_variable_resident_with_a_note() -> None:
    def model(x: Any, step: Any) -> tuple[Any, Any]:
        w = weight()
        old = tf.convert_to_tensor(w)
        train = sgd(mean_square(tf.matmul(x, w)), step)
        with tf.control_dependencies([train]):
            return tf.reduce_sum(tf.identity(old)), train

    result = run_both(model)
    assert not result.streamed
    assert "runs after the update and uses the value" in note_on(result, "w")


def test_an_average_that_is_assigned_as_a_whole_is_streamed() -> None:
    def model(x: Any, step: Any) -> tuple[Any, Any]:
        w, average = weight(), weight("average")
        loss = mean_square(tf.matmul(x, w))
        train = sgd(loss, step)
        with tf.control_dependencies([train]):
            return loss, average.assign(0.9 * average + 0.1 * w.read_value()).op

    assert run_both(model).streamed == {"w", "average"}


def test_a_first_write_that_replaces_the_value_does_not_load_it() -> None:
    def model(x: Any, step: Any) -> tuple[Any, Any]:
        last = weight("last", (ROWS, WIDTH))
        with tf.control_dependencies([last.assign(x)]):
            return tf.reduce_sum(x), step.assign_add(1).op

    result = run_both(model)
    assert [event.kind for event in result.program.events] == ["update"]
    assert not any(node.name == "last/cs_update/load" for node in result.program.graph_def.node)
    assert result.outputs[-1] == pytest.approx(result.variables["last"].sum(), rel=1e-4)


def test_two_writes_in_a_row_are_one_update() -> None:
    def model(x: Any, step: Any) -> tuple[Any, Any]:
        w = weight()
        loss = mean_square(tf.matmul(x, w))
        with tf.control_dependencies([sgd(loss, step)]):
            return loss, w.assign(tf.clip_by_value(w, -0.3, 0.3)).op

    result = run_both(model)
    assert [event.kind for event in result.program.events].count("update") == 1
    assert np.abs(result.variables["w"]).max() <= np.float32(0.3)


def test_a_variable_only_gathered_is_never_loaded_for_its_reads() -> None:
    def model(x: Any, step: Any) -> tuple[Any, Any]:
        table = weight("table", (16, 4))
        ids = tf.cast(tf.abs(x[:, 0] * 3), tf.int32)
        loss = mean_square(tf.gather(table, ids))
        return loss, sgd(loss, step)

    result = run_both(model)
    assert {event.kind for event in result.program.events} == {"gather", "update"}


def test_gathering_with_batch_dims_keeps_the_table_resident_with_a_note() -> None:
    def model(x: Any, step: Any) -> tuple[Any, Any]:
        table = weight("table", (ROWS, 16))
        ids = tf.cast(tf.abs(x[:, :2] * 3), tf.int32)
        gathered = tf.raw_ops.ResourceGather(resource=table.handle, indices=ids, dtype=tf.float32, batch_dims=1)
        with tf.control_dependencies([table.assign_add(tf.ones([ROWS, 16]))]):
            return tf.reduce_sum(gathered), step.assign_add(1).op

    result = run_both(model)
    assert "batch dimensions" in note_on(result, "table")


def test_a_variable_read_in_one_branch_is_read_before_an_update_outside_of_it() -> None:
    def model(x: Any, step: Any) -> tuple[Any, Any]:
        w = weight()
        taken = tf.equal(step % 2, 0)
        output = tf.cond(taken, lambda: tf.reduce_sum(w), lambda: tf.reduce_mean(x))
        with tf.control_dependencies([w.assign_add(tf.ones([WIDTH, WIDTH]))]):
            return output, step.assign_add(1).op

    result = run_both(model, steps=12)
    assert result.streamed == {"w"}
    start = result.variables["w"].sum() - 12 * WIDTH * WIDTH
    evens = [float(value) for value in result.outputs[::2]]
    assert evens == pytest.approx([start + step * WIDTH * WIDTH for step in range(0, 12, 2)], rel=1e-4)


def test_a_variable_trained_in_one_branch_agrees_whether_or_not_it_is_taken() -> None:
    def model(x: Any, step: Any) -> tuple[Any, Any]:
        one, two = weight("one"), weight("two")
        loss = tf.cond(
            tf.equal(step % 3, 0), lambda: mean_square(tf.matmul(x, one)), lambda: mean_square(tf.matmul(x, two))
        )
        return loss, v1.train.AdamOptimizer(0.1).minimize(loss, step)

    result = run_both(model, steps=7)
    assert {"one/Adam", "two/Adam"} <= result.streamed


def test_nested_branches_agree() -> None:
    def model(x: Any, step: Any) -> tuple[Any, Any]:
        w = weight()

        def inner() -> Any:
            return tf.cond(tf.equal(step % 4, 0), lambda: tf.reduce_sum(tf.matmul(x, w)), lambda: tf.reduce_sum(x))

        output = tf.cond(tf.equal(step % 2, 0), inner, lambda: tf.reduce_mean(x))
        with tf.control_dependencies([w.assign_sub(0.1 * tf.ones([WIDTH, WIDTH]))]):
            return output, step.assign_add(1).op

    assert run_both(model, steps=9).streamed == {"w"}


def test_an_update_in_an_untaken_branch_does_not_change_the_weight() -> None:
    def model(x: Any, step: Any) -> tuple[Any, Any]:
        w = weight()
        loss = mean_square(tf.matmul(x, w))
        (gradient,) = tf.gradients(loss, [w])
        change = tf.cond(tf.equal(step % 2, 1), lambda: w.assign_sub(gradient).op, lambda: tf.no_op())
        with tf.control_dependencies([change]):
            return loss, step.assign_add(1).op

    small = build(model)
    one, two = run_small(small, "weight_streaming", 1), run_small(small, "weight_streaming", 2)
    assert one.variables["w"].tobytes() == small.values["w"].tobytes()
    assert two.variables["w"].tobytes() != small.values["w"].tobytes()
    assert run_both(model, steps=5).streamed == {"w"}


def test_a_graph_without_updates_has_loads_only_and_no_step_node() -> None:
    def model(x: Any, step: Any) -> tuple[Any, Any]:
        w, other = weight(), weight("other")
        return tf.reduce_sum(tf.exp(2.0 * w) + tf.matmul(tf.transpose(x), tf.matmul(x, other))), None

    result = run_both(model)
    assert result.program.step_node is None
    assert {event.kind for event in result.program.events} == {"load"}
    assert len(set(map(float, result.outputs))) == len(result.outputs)


def test_the_store_keeps_its_values_when_ops_write_over_their_inputs() -> None:
    def model(x: Any, step: Any) -> tuple[Any, Any]:
        return tf.reduce_sum(tf.exp(weight() * 2.0)), None

    small = build(model)
    result = run_small(small, "weight_streaming", 3)
    assert result.variables["w"].tobytes() == small.values["w"].tobytes()
    assert len(set(map(float, result.outputs))) == 1


def test_a_summary_of_a_weight_shows_its_value_before_the_update() -> None:
    def model(x: Any, step: Any) -> tuple[Any, Any]:
        w = weight()
        with tf.control_dependencies([w.assign_add(tf.ones([WIDTH, WIDTH]))]):
            train = step.assign_add(1).op
        return tf.reduce_sum(tf.raw_ops.ReadVariableOp(resource=w.handle, dtype=tf.float32)), train

    small = build(model)
    result = run_both(model, steps=8)
    start = float(small.values["w"].sum())
    assert [float(value) for value in result.outputs] == pytest.approx(
        [start + n * WIDTH * WIDTH for n in range(8)], rel=1e-4
    )


def test_with_a_threshold_of_zero_everything_but_the_global_step_is_streamed() -> None:
    def model(x: Any, step: Any) -> tuple[Any, Any]:
        loss = mean_square(tf.matmul(x, weight()))
        return loss, v1.train.AdamOptimizer(0.1).minimize(loss, step)

    result = run_both(model, min_bytes=0)
    assert result.streamed == {"w", "w/Adam", "w/Adam_1", "beta1_power", "beta2_power"}
    assert [spec.name for spec in result.program.resident] == ["global_step"]


def test_a_variable_of_unknown_shape_is_not_streamed() -> None:
    def model(x: Any, step: Any) -> tuple[Any, Any]:
        loose = v1.get_variable("loose", initializer=tf.zeros([3]), validate_shape=False, trainable=False)
        loose.handle.op._set_attr("shape", tf.compat.v1.AttrValue(shape=tf.TensorShape(None).as_proto()))
        return mean_square(tf.matmul(x, weight())), None

    program = compile_small(build(model), "weight_streaming", min_bytes=0)
    assert {spec.name for spec in program.streamed} == {"w"}
    assert {spec.name: spec.is_fixed for spec in program.resident} == {"loose": False, "global_step": True}


def test_local_variables_are_never_streamed() -> None:
    def model(x: Any, step: Any) -> tuple[Any, Any]:
        local = v1.get_variable(
            "local", [64], initializer=v1.zeros_initializer(), collections=[v1.GraphKeys.LOCAL_VARIABLES]
        )
        return tf.group(local.assign_add(tf.ones([64]))), None

    program = compile_small(build(model), "weight_streaming", min_bytes=0)
    assert "local" in {spec.name for spec in program.resident}


@pytest.mark.parametrize("window_bytes", [1, 300, 10_000])
def test_the_most_bytes_held_is_at_most_the_window_or_two_weights(window_bytes: int) -> None:
    def model(x: Any, step: Any) -> tuple[Any, Any]:
        for number in range(6):
            x = tf.tanh(tf.matmul(x, weight(f"w{number}")))
        loss = mean_square(x)
        return loss, sgd(loss, step)

    program = compile_small(build(model), "weight_streaming", window_bytes=window_bytes)
    size = WIDTH * WIDTH * 4
    assert program.window_bytes <= max(window_bytes, 2 * size)
    loads = [event for event in program.events if event.kind == "load"]
    assert len(loads) == (6 if window_bytes == 10_000 else 11)  # the last layer's load serves both passes


# Small networks drawn at random: each layer is one of these, each optimizer one of those.


def _layer(kind: str, x: Any, number: int, step: Any, shared: Any) -> Any:
    with v1.variable_scope(f"layer_{number}"):
        if kind == "dense":
            return tf.tanh(tf.matmul(x, weight()))
        if kind == "shared":
            return x + tf.matmul(x, shared)
        if kind == "scaled":
            return x * v1.get_variable("gain", [WIDTH], initializer=v1.ones_initializer())
        if kind == "dropout":
            return v1.nn.dropout(tf.matmul(x, weight()), rate=0.3)
        if kind == "gather":
            ids = tf.math.floormod(tf.cast(tf.abs(x[:, 0]) * 4, tf.int32), 16)
            return x + tf.gather(weight("table", (16, WIDTH)), ids)
        if kind == "cond":
            w = weight()
            return tf.cond(tf.equal(step % 2, number % 2), lambda: tf.matmul(x, w), lambda: x)
        raise AssertionError(kind)


def _train(kind: str, loss: Any, step: Any) -> Any:
    if kind == "adam":
        return v1.train.AdamOptimizer(0.01).minimize(loss, step)
    if kind == "momentum":
        return v1.train.MomentumOptimizer(0.05, 0.9, use_nesterov=True).minimize(loss, step)
    if kind == "adagrad":
        return v1.train.AdagradOptimizer(0.05).minimize(loss, step)
    optimizer = v1.train.AdamOptimizer(0.01)
    pairs = [(tf.convert_to_tensor(g), w) for g, w in optimizer.compute_gradients(loss) if g is not None]
    if kind == "clipped":
        gradients, _ = tf.clip_by_global_norm([g for g, _ in pairs], 0.1)
        return optimizer.apply_gradients([(g, w) for g, (_, w) in zip(gradients, pairs, strict=True)], step)
    skip = tf.equal(step % 3, 1)
    applied = tf.cond(skip, lambda: tf.group(tf.no_op()), lambda: optimizer.apply_gradients(pairs))
    with tf.control_dependencies([applied]):
        return step.assign_add(1).op


LAYERS = ["dense", "shared", "scaled", "dropout", "gather", "cond"]
OPTIMIZERS = ["adam", "momentum", "adagrad", "clipped", "skipped"]


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    layers=st.lists(st.sampled_from(LAYERS), min_size=1, max_size=5),
    optimizer=st.sampled_from(OPTIMIZERS),
    window_bytes=st.sampled_from([1, 300, 600, 5000]),
    min_bytes=st.sampled_from([0, 64, 300]),
)
def test_drawn_networks_agree_in_every_bit(
    layers: list[str], optimizer: str, window_bytes: int, min_bytes: int
) -> None:
    def model(x: Any, step: Any) -> tuple[Any, Any]:
        shared = weight("shared")
        for number, kind in enumerate(layers):
            x = _layer(kind, x, number, step, shared)
        loss = mean_square(tf.matmul(x, shared, transpose_b=True))
        return loss, _train(optimizer, loss, step)

    run_both(model, steps=4, min_bytes=min_bytes, window_bytes=window_bytes)


def test_a_step_of_drawn_layers_has_values_to_spill() -> None:
    def model(x: Any, step: Any) -> tuple[Any, Any]:
        shared = weight("shared")
        for number, kind in enumerate(LAYERS):
            x = _layer(kind, x, number, step, shared)
        loss = mean_square(tf.matmul(x, shared, transpose_b=True))
        return loss, _train("clipped", loss, step)

    program = compile_small(build(model), "weight_streaming", **EVERYTHING_SPILLED)
    assert len(program.spilled) > 10
    assert {event.kind for event in program.events} == {"load", "gather", "update", "replace", "spill", "fill"}


def test_two_sessions_over_one_program_do_not_share_weights(tmp_path: Path) -> None:
    def model(x: Any, step: Any) -> tuple[Any, Any]:
        loss = mean_square(tf.matmul(x, weight()))
        return loss, sgd(loss, step)

    small = build(model)
    program = compile_small(small, "weight_streaming")
    first, second = open_small(small, program, tmp_path / "1"), open_small(small, program, tmp_path / "2")
    first.run(small.train_op)
    assert second.read("w").tobytes() == small.values["w"].tobytes()
    assert first.read("w").tobytes() != small.values["w"].tobytes()
    first.close()
    second.close()
