"""Hooks get a session that behaves like TensorFlow's, in both modes, and ops that hooks create can run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.unit.estimator import tiny

v1 = tf.compat.v1


def train(folder: Path, *hooks: Any, steps: int = 3, **settings: Any) -> Any:
    return tiny.estimator(folder, **settings).train(tiny.input_fn(), hooks=list(hooks), max_steps=steps)


class Hook(v1.train.SessionRunHook):
    """Calls functions of (self, session) at the points of a run."""

    def __init__(self, **points: Any) -> None:
        self.points = points
        self.seen: list[Any] = []

    def begin(self) -> None:
        self.points.get("begin", lambda hook, session: None)(self, None)

    def after_create_session(self, session: Any, coord: Any) -> None:
        self.points.get("created", lambda hook, session: None)(self, session)

    def before_run(self, run_context: Any) -> Any:
        return self.points.get("before", lambda hook, session: None)(self, run_context.session)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.points.get("after", lambda hook, session, values: None)(self, run_context.session, run_values.results)

    def end(self, session: Any) -> None:
        self.points.get("end", lambda hook, session: None)(self, session)


def read(session: Any, name: str) -> Any:
    return session.run(f"{name}/Read/ReadVariableOp:0")


def variable(name: str) -> Any:
    return next(one for one in v1.global_variables() if one.op.name == name)


def test_hooks_get_a_session_on_the_models_graph(mode: str, tmp_path: Path) -> None:
    def created(hook: Any, session: Any) -> None:
        assert isinstance(session, v1.Session)
        assert session.graph is v1.get_default_graph()
        with session.as_default():
            hook.seen.append(variable("global_step").eval())
        hook.seen.append(session.make_callable("w/Read/ReadVariableOp:0")().shape)

    hook = Hook(created=created)
    train(tmp_path, hook)
    assert hook.seen == [0, (4, 64)]


def test_a_saver_saves_and_restores_also_streamed_weights(mode: str, tmp_path: Path) -> None:
    def begin(hook: Any, session: Any) -> None:
        hook.saver = v1.train.Saver()
        hook.clear = variable("w").assign(np.zeros((4, 64), np.float32))

    def end(hook: Any, session: Any) -> None:
        path = hook.saver.save(session, str(tmp_path / "own"), global_step=3)
        before = read(session, "w")
        session.run(hook.clear)
        assert not read(session, "w").any()
        hook.saver.restore(session, path)
        assert np.array_equal(read(session, "w"), before)
        hook.seen.append(path)

    hook = Hook(begin=begin, end=end)
    run = train(tmp_path / "model", hook)
    reader = tf.train.load_checkpoint(hook.seen[0])
    assert reader.get_tensor("global_step") == 3
    for name in ("w", "out", "w/Adam"):
        assert np.array_equal(reader.get_tensor(name), run.get_variable_value(name))


def test_tensorflows_checkpoint_profiler_and_logging_hooks_work(mode: str, tmp_path: Path) -> None:
    class Named(v1.train.LoggingTensorHook):
        def begin(self) -> None:
            self._tensors = {"w": variable("w").read_value(), "step": variable("global_step").read_value()}
            super().begin()

    final: list[Any] = []

    class Final(v1.train.FinalOpsHook):
        def begin(self) -> None:
            self._final_ops = {"w": variable("w").read_value(), "one": tf.constant(1)}
            super().begin()

        def end(self, session: Any) -> None:
            super().end(session)
            final.append(self.final_ops_values)

    with tf.Graph().as_default():  # TensorFlow makes its event file here
        profiler = v1.train.ProfilerHook(save_steps=2, output_dir=str(tmp_path / "own"))
    run = train(
        tmp_path / "model",
        v1.train.CheckpointSaverHook(str(tmp_path / "own"), save_steps=1),
        v1.train.StepCounterHook(every_n_steps=1, output_dir=str(tmp_path / "own")),
        profiler,
        v1.train.GlobalStepWaiterHook(0),
        Named([], every_n_iter=1),
        Final(None),
    )
    assert v1.train.latest_checkpoint(str(tmp_path / "own")) == str(tmp_path / "own" / "model.ckpt-3")
    assert list((tmp_path / "own").glob("timeline*"))
    assert np.array_equal(final[0]["w"], run.get_variable_value("w"))


def test_no_warning_says_that_the_global_step_did_not_increase(
    mode: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tf.get_logger().propagate = True
    train(
        tmp_path,
        v1.train.StepCounterHook(every_n_steps=100, output_dir=str(tmp_path)),
        steps=8,
        log_step_count_steps=100,
    )
    assert "has not been increased" not in caplog.text


def test_tensors_read_beside_a_step_are_from_before_it(mode: str, tmp_path: Path) -> None:
    def begin(hook: Any, session: Any) -> None:
        hook.tensors = [variable("global_step").read_value() + 0, variable("w").read_value() * 1]

    def created(hook: Any, session: Any) -> None:
        hook.before = read(session, "w")

    def after(hook: Any, session: Any, values: Any) -> None:
        step, w = values
        hook.seen.append(int(step))
        assert np.array_equal(w, hook.before)
        hook.before = read(session, "w")

    hook = Hook(begin=begin, created=created, before=lambda hook, _: v1.train.SessionRunArgs(hook.tensors), after=after)
    train(tmp_path, hook)
    assert hook.seen == [0, 1, 2]


def test_ops_of_begin_run_later_with_placeholders_and_assigns(mode: str, tmp_path: Path) -> None:
    def begin(hook: Any, session: Any) -> None:
        hook.value = v1.placeholder(tf.float32, [], name="hook_value")
        w = variable("w")
        hook.assign = w.assign(tf.fill([4, 64], hook.value))
        with tf.control_dependencies([hook.assign]):
            hook.after_assign = tf.reduce_sum(w.read_value())
        hook.add = w.assign_add(tf.ones([4, 64]))

    def created(hook: Any, session: Any) -> None:
        assert session.run(hook.after_assign, {hook.value: 2.0}) == 512
        session.run(hook.add)
        assert np.all(read(session, "w") == 3)

    hook = Hook(
        begin=begin, created=created, before=lambda hook, _: v1.train.SessionRunArgs(hook.value, {hook.value: 5.0})
    )
    train(tmp_path, hook)


def test_variables_of_begin_exist_and_are_saved(mode: str, tmp_path: Path) -> None:
    def begin(hook: Any, session: Any) -> None:
        hook.count = v1.get_variable(
            "hook/count", [], tf.int64, initializer=v1.constant_initializer(10), trainable=False
        )
        hook.local = v1.get_local_variable("hook/local", [2], initializer=v1.ones_initializer(), use_resource=True)
        hook.values = [hook.count.read_value(), hook.local.read_value()]
        hook.step = tf.group(hook.count.assign_add(1), hook.local.assign_add([1.0, 1.0]))

    def end(hook: Any, session: Any) -> None:
        hook.seen.append(session.run(hook.values))

    def hook() -> Any:
        return Hook(begin=begin, after=lambda hook, session, _: session.run(hook.step), end=end)

    first, second = hook(), hook()
    run = train(tmp_path, first, steps=3)
    assert run.get_variable_value("hook/count") == first.seen[0][0] == 13
    assert first.seen[0][1].tolist() == [4, 4]
    plain = train(tmp_path / "plain", steps=3)
    assert np.array_equal(plain.get_variable_value("w"), run.get_variable_value("w"))
    train(tmp_path, second, steps=5)
    assert second.seen[0][0] == 15
    assert second.seen[0][1].tolist() == [3, 3]


def test_reference_variables_are_accepted(mode: str, tmp_path: Path) -> None:
    def spec(mode: str, y: Any, labels: Any) -> dict[str, Any]:
        if mode != "train":
            return {}
        count = v1.get_variable("count", [], initializer=v1.zeros_initializer(), use_resource=False, trainable=False)
        loss = tf.reduce_mean((y - labels) ** 2)
        step = v1.train.GradientDescentOptimizer(0.1).minimize(loss, v1.train.get_global_step())
        return {"train_op": tf.group(step, v1.assign_add(count, 1.0))}

    run = tiny.estimator(tmp_path, {"spec": spec}).train(tiny.input_fn(), steps=3)
    assert run.get_variable_value("count") == 3
