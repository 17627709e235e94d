"""Inputs that stay in the graph of the model, in both modes: the batches of a Dataset give the same weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.unit.estimator import tiny

v1 = tf.compat.v1
X, Y = tiny.arrays()


def iterator_of_a_hook() -> tuple[Callable[[], Any], list[Any]]:
    class Initializes(v1.train.SessionRunHook):
        made: tuple[Any, Any, Any]

        def after_create_session(self, session: Any, coord: Any) -> None:
            initializer, x, y = self.made
            session.run(initializer, {x: X, y: Y})

    hook = Initializes()

    def input_fn() -> Any:
        x, y = v1.placeholder(tf.float32, X.shape), v1.placeholder(tf.float32, Y.shape)
        dataset = tf.data.Dataset.from_tensor_slices(({"x": x}, y)).repeat().batch(tiny.BATCH)
        iterator = v1.data.make_initializable_iterator(dataset)
        hook.made = iterator.initializer, x, y
        return iterator.get_next()

    return input_fn, [hook]


def queue() -> tuple[Callable[[], Any], list[Any]]:
    def input_fn() -> Any:
        rows = tf.queue.FIFOQueue(100, [tf.float32, tf.float32], [[4], [1]])
        v1.train.add_queue_runner(v1.train.QueueRunner(rows, [rows.enqueue_many([tf.constant(X), tf.constant(Y)])]))
        x, y = rows.dequeue_many(tiny.BATCH)
        return {"x": x}, y

    return input_fn, []


def arrays() -> tuple[Callable[[], Any], list[Any]]:
    from cerebras_tensorflow.estimator.model.array_inputs import numpy_input_fn

    return numpy_input_fn({"x": X}, Y, tiny.BATCH, None, shuffle=False), []


@pytest.mark.parametrize("make", [iterator_of_a_hook, queue, arrays])
def test_weights_are_those_of_a_dataset(make: Callable[[], Any], mode: str, tmp_path: Path) -> None:
    expected = tiny.estimator(tmp_path / "dataset").train(tiny.input_fn(), steps=5)
    input_fn, hooks = make()
    run = tiny.estimator(tmp_path / "own", {"spec": same_weights(expected)}).train(input_fn, hooks=hooks, steps=5)
    np.testing.assert_array_equal(run.get_variable_value("out"), expected.get_variable_value("out"))


def same_weights(expected: Any) -> Callable[..., dict[str, Any]]:
    """Start from the initial weights of another run: the seeds of ops depend on the ops that the input makes."""
    first = f"{expected.model_dir}/model.ckpt-0"
    streaming = f"{expected.model_dir}/model-ckpt-0"

    def spec(mode: str, y: Any, labels: Any) -> dict[str, Any]:
        path = first if tf.io.gfile.exists(f"{first}.index") else streaming
        v1.train.init_from_checkpoint(path, {"w": "w", "out": "out"})
        return {}

    return spec


def test_queues_that_end_end_an_evaluation(mode: str, tmp_path: Path) -> None:
    lines = tmp_path / "rows.csv"
    np.savetxt(lines, np.concatenate([X, Y], 1), delimiter=",")

    def input_fn() -> Any:
        files = v1.train.string_input_producer([str(lines)], num_epochs=1, shuffle=False)
        _, line = v1.TextLineReader().read(files)
        row = tf.stack(v1.decode_csv(line, [[0.0]] * 5))
        batch = v1.train.batch([row], batch_size=tiny.BATCH)
        return {"x": batch[:, :4]}, batch[:, 4:]

    run = tiny.estimator(tmp_path / "model").train(tiny.input_fn(), steps=1)
    expected = run.evaluate(tiny.input_fn(epochs=1))
    assert run.evaluate(input_fn)["loss"] == pytest.approx(expected["loss"], rel=1e-5)
