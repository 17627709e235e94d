"""Ops that TensorFlow's profiler recorded: those of sessions only, each with the call of its function."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import tensorflow as tf

from cerebras_tensorflow import tf_private
from cerebras_tensorflow.perf.recorded_ops import RecordedOp, recorded_ops

v1 = tf.compat.v1


def space(*events: tuple[str, int, int, dict[str, Any]], begin_ns: int = 0) -> Any:
    """Return the XSpace of one thread; an event has a name, begin and end [us], and stats."""
    made = tf_private.profile_of(b"")
    if begin_ns:
        environment = made.planes.add(name="Task Environment")
        environment.stat_metadata[1].name = "profile_start_time"
        environment.stats.add(metadata_id=1, uint64_value=begin_ns)
    plane = made.planes.add()
    line = plane.lines.add()
    keys = ["", "id", "step_id", "name", "kernel_type"]
    for number, key in enumerate(keys):
        plane.stat_metadata[number].name = key
    for number, (name, begin, end, stats) in enumerate(events):
        plane.event_metadata[number].name = name
        event = line.events.add(metadata_id=number, offset_ps=begin * 10**6, duration_ps=(end - begin) * 10**6)
        for key, value in stats.items():
            stat = event.stats.add(metadata_id=keys.index(key))
            setattr(stat, "str_value" if isinstance(value, str) else "int64_value", value)
    return made


def test_ops_of_input_pipelines_are_left_out() -> None:
    recorded = space(
        ("SessionRun", 0, 1, {"id": 7}),
        ("ExecutorState::Process", 10, 30, {"id": 7}),
        ("scope/dense:MatMul", 11, 29, {}),
        ("ExecutorState::Process", 40, 60, {"id": -5}),  # not a session's
        ("dense:MatMul", 41, 59, {}),
        begin_ns=3_000_000_000,
    )
    assert recorded_ops(recorded, 1) == [RecordedOp("scope/dense", "MatMul", None, 3.000011, 3.000029)]


def test_an_asynchronous_op_lasts_until_it_is_done_and_a_functions_ops_stand_for_its_call() -> None:
    recorded = space(
        ("SessionRun", 0, 1, {"id": 7}),
        ("ExecutorState::ProcessAsync::Start", 10, 12, {"step_id": 7, "name": "get", "kernel_type": "Recv"}),
        ("ExecutorState::ProcessAsync::Start", 20, 30, {"step_id": 7, "name": "call", "kernel_type": "Call"}),
        ("FunctionRun", 21, 22, {"id": -8}),
        ("ExecutorState::Process", 40, 60, {"id": -8}),
        ("inner:Mul", 41, 59, {}),
        ("ExecutorState::ProcessAsync::Done", 70, 71, {"step_id": 7, "name": "get"}),
        ("ExecutorState::ProcessAsync::Done", 80, 81, {"step_id": 7, "name": "call"}),
    )
    found = [(op.name, op.kind, op.call, op.begin_s, op.end_s) for op in recorded_ops(recorded, 10**9)]
    assert found == [("get", "Recv", None, 1.00001, 1.00007), ("inner", "Mul", "call", 1.000041, 1.000059)]


def test_tensorflow_writes_what_is_read(tmp_path: Path) -> None:
    config = v1.ConfigProto()
    config.graph_options.optimizer_options.opt_level = -1  # or TensorFlow takes functions into the graph
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with tf.Graph().as_default(), v1.Session(config=config) as session:
        function = tf.function(lambda x: tf.matmul(x, x, name="inner"), autograph=False)
        concrete = function.get_concrete_function(tf.TensorSpec([200, 200], tf.float32))
        x = tf.matmul(tf.ones([200, 200]), tf.random.uniform([200, 200]), name="outer")
        for number in range(2):
            (x,) = tf.raw_ops.StatefulPartitionedCall(args=[x], Tout=[tf.float32], f=concrete, name=f"call{number}")
        session.run(x)
        tf.profiler.experimental.start(str(tmp_path))
        begin_ns = time.time_ns()
        session.run(x)
        end_s = time.time()
        tf.profiler.experimental.stop()
    (path,) = tmp_path.rglob("*.xplane.pb")
    ops = recorded_ops(tf_private.profile_of(path.read_bytes()), begin_ns)
    found = [op for op in ops if "MatMul" in op.kind]
    assert [(op.name, op.call) for op in found] == [("outer", None), ("inner", "call0"), ("inner", "call1")]
    assert all(begin_ns / 1e9 - 0.01 <= op.begin_s < op.end_s <= end_s + 0.01 for op in found)
