"""The Scaffold of a model_fn sets the Saver, the initial values and the summaries, in both modes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint
from tests.unit.estimator import tiny

v1 = tf.compat.v1


def variable(name: str) -> Any:
    return next(one for one in v1.global_variables() if one.op.name == name)


def made(folder: Path, scaffold: Callable[[str], Any], **settings: Any) -> Any:
    """An estimator whose spec has what `scaffold(mode)` returns."""

    def spec(mode: str, y: Any, labels: Any) -> dict[str, Any]:
        chosen = scaffold(mode)
        return {} if chosen is None else chosen if isinstance(chosen, dict) else {"scaffold": chosen}

    return tiny.estimator(folder, {"spec": spec}, **settings)


def outputs(run: Any, **arguments: Any) -> np.ndarray:
    return np.array([sample["y"] for sample in run.predict(tiny.input_fn(epochs=1), **arguments)])


def test_predictions_take_moving_averages_from_the_savers_names(mode: str, tmp_path: Path) -> None:
    averaging = v1.train.ExponentialMovingAverage(0.5)

    def spec(mode: str, y: Any, labels: Any) -> dict[str, Any]:
        trained = v1.trainable_variables()
        if mode == "train":
            loss = tf.reduce_mean((y - labels) ** 2)
            step = v1.train.GradientDescentOptimizer(0.5).minimize(loss, v1.train.get_global_step())
            with tf.control_dependencies([step]):
                return {"train_op": averaging.apply(trained)}
        saver = v1.train.Saver(v1.train.ExponentialMovingAverage(0.5).variables_to_restore(trained))
        return {"scaffold": v1.train.Scaffold(saver=saver)}

    run = tiny.estimator(tmp_path, {"spec": spec}).train(tiny.input_fn(), steps=4)
    w, out = (run.get_variable_value(f"{name}/ExponentialMovingAverage") for name in ("w", "out"))
    expected = np.tanh(tiny.arrays()[0] @ w) @ out
    assert np.allclose(outputs(run), expected, atol=1e-5)
    assert not np.allclose(
        np.tanh(tiny.arrays()[0] @ run.get_variable_value("w")) @ run.get_variable_value("out"), expected
    )
    assert run.evaluate(tiny.input_fn(epochs=1))["loss"] == pytest.approx(
        np.mean((expected - tiny.arrays()[1]) ** 2), rel=1e-4
    )


def test_a_saver_chooses_names_and_variables_of_checkpoints(mode: str, tmp_path: Path) -> None:
    def scaffold(mode: str) -> Any:
        kept = {"weights/first": variable("w"), "out": variable("out"), "global_step": variable("global_step")}
        return v1.train.Scaffold(saver=v1.train.Saver(kept))

    run = made(tmp_path, scaffold).train(tiny.input_fn(), max_steps=2)
    assert sorted(run.get_variable_names()) == ["global_step", "out", "weights/first"]
    again = made(tmp_path, scaffold)
    before = outputs(run)
    assert np.array_equal(outputs(again), before)
    again.train(tiny.input_fn(), max_steps=3)  # the moments of Adam are not in the checkpoint and start at zero
    assert again.get_variable_value("global_step") == 3


def test_a_checkpoint_of_objects_is_saved_and_restored(mode: str, tmp_path: Path) -> None:
    def scaffold(mode: str) -> Any:
        objects = tf.train.Checkpoint(first=variable("w"), second=variable("out"), step=variable("global_step"))
        return v1.train.Scaffold(saver=objects)

    run = made(tmp_path, scaffold).train(tiny.input_fn(), max_steps=2)
    with open_checkpoint(run.latest_checkpoint()) as reader:
        assert "first/.ATTRIBUTES/VARIABLE_VALUE" in reader
        w = reader.read("first/.ATTRIBUTES/VARIABLE_VALUE")
        out = reader.read("second/.ATTRIBUTES/VARIABLE_VALUE")
    assert np.allclose(outputs(made(tmp_path, scaffold)), np.tanh(tiny.arrays()[0] @ w) @ out, atol=1e-5)


def test_values_of_init_fn_and_init_op_are_in_the_first_checkpoint(mode: str, tmp_path: Path) -> None:
    def scaffold(mode: str) -> Any:
        if mode != "train":
            return None
        value = v1.placeholder(tf.float32, [4, 64])
        assign = variable("w").assign(value)
        filled = variable("out").assign(tf.fill([64, 1], v1.placeholder_with_default(7.0, [], name="given")))
        return v1.train.Scaffold(
            init_op=tf.group(v1.global_variables_initializer(), filled),
            init_feed_dict={"given:0": 5.0},
            init_fn=lambda scaffold, session: session.run(assign, {value: np.full((4, 64), 3.0)}),
        )

    run = made(tmp_path, scaffold, keep_checkpoint_max=None).train(tiny.input_fn(), steps=1)
    first = next(str(path) for path in tmp_path.glob("model*ckpt-0.index"))[: -len(".index")]
    with open_checkpoint(first) as reader:
        assert np.all(reader.read("w") == 3) and np.all(reader.read("out") == 5)
    assert np.allclose(run.get_variable_value("w"), 3, atol=0.02)


def test_a_local_init_op_replaces_the_default(mode: str, tmp_path: Path) -> None:
    seen: list[Any] = []

    class Looks(v1.train.SessionRunHook):
        def after_create_session(self, session: Any, coord: Any) -> None:
            seen.append(session.run("local/Read/ReadVariableOp:0"))

    def scaffold(mode: str) -> Any:
        local = v1.get_local_variable("local", [], initializer=v1.zeros_initializer(), use_resource=True)
        return v1.train.Scaffold(local_init_op=local.assign(9.0).op)

    made(tmp_path, scaffold).train(tiny.input_fn(), steps=1, hooks=[Looks()])
    assert seen == [9]


def test_a_ready_op_that_reports_a_variable_stops_the_run(mode: str, tmp_path: Path) -> None:
    run = made(tmp_path, lambda mode: v1.train.Scaffold(ready_op=tf.constant(["w"])))
    with pytest.raises(RuntimeError, match=r"Init operations did not make model ready.*not initialized: w"):
        run.train(tiny.input_fn(), steps=1)


def test_only_the_summary_op_of_the_scaffold_is_written(mode: str, tmp_path: Path) -> None:
    def scaffold(mode: str) -> Any:
        with tf.Graph().as_default():
            pass
        return v1.train.Scaffold(summary_op=v1.summary.scalar("only", 1.0, collections=[]))

    made(tmp_path, scaffold, save_summary_steps=1).train(tiny.input_fn(), steps=1)
    (file,) = tmp_path.glob("events*")
    with tf.Graph().as_default():
        v1.summary.FileWriterCache.clear()
    tags = {value.tag for event in v1.train.summary_iterator(str(file)) for value in event.summary.value}
    assert "only" in tags and "loss" not in tags


def test_values_are_copied_from_another_scaffold(mode: str, tmp_path: Path) -> None:
    def scaffold(mode: str) -> Any:
        first = v1.train.Scaffold(init_fn=lambda scaffold, session: session.run(filled))
        filled = variable("out").assign(tf.ones([64, 1]))
        return v1.train.Scaffold(copy_from_scaffold=first)

    run = made(tmp_path, scaffold).train(tiny.input_fn(), steps=1)
    assert np.allclose(run.get_variable_value("out"), 1, atol=0.02)
