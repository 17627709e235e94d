"""Compilation of a model: what may end it, and what may not."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from cerebras_tensorflow import CerebrasEstimator, CSConfig, CSRunConfig
from cerebras_tensorflow.estimator.execution import compile_model
from cerebras_tensorflow.estimator.spec import EstimatorSpec
from cerebras_tensorflow.estimator.tf_estimator import Estimator


def test_a_fault_of_the_simulated_speed_does_not_end_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def model_fn(features: Any, mode: str) -> Any:
        step = tf.compat.v1.train.get_global_step()
        return EstimatorSpec(mode, loss=tf.reduce_sum(features), train_op=tf.compat.v1.assign_add(step, 1))

    def fail(*_: object) -> None:
        raise IndexError("no such row")

    monkeypatch.setattr(compile_model, "network_of", fail)
    Estimator(model_fn, str(tmp_path)).train(lambda: tf.data.Dataset.from_tensors([[1.0], [1.0]]), steps=1)
    assert (tmp_path / "model.ckpt-1.index").is_file()
    assert "The simulated speed of this step is unknown (IndexError: no such row)." in caplog.text


def test_a_cached_compilation_shows_the_summary_and_gets_a_new_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CEREBRAS_HOME", str(tmp_path / "home"))

    def model_fn(features: Any, mode: str) -> Any:
        kernel = tf.compat.v1.get_variable("dense/kernel", [3, 2])
        loss = tf.reduce_sum(tf.matmul(features, kernel, name="dense/MatMul"))
        step = tf.compat.v1.train.get_global_step()
        return EstimatorSpec(mode, loss=loss, train_op=tf.compat.v1.assign_add(step, 1))

    config = CSRunConfig(cs_config=CSConfig(model_summary=True))
    estimator = CerebrasEstimator(model_fn, str(tmp_path / "model_dir"), config=config)
    for _ in range(2):
        caplog.clear()
        estimator.compile(lambda: tf.data.Dataset.from_tensors([[1.0, 2.0, 3.0]]))
        assert "Model summary" in caplog.text and "matrix product" in caplog.text
        (report,) = (tmp_path / "model_dir").rglob("compile_report.txt")
        assert "Samples/s: " in report.read_text()
        report.write_text("as another release left it")
    assert "Cached compilation found" in caplog.text


def test_an_iterator_in_the_model_is_named_but_not_one_in_the_input(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def batch() -> Any:
        return tf.compat.v1.data.make_one_shot_iterator(tf.data.Dataset.from_tensors([1.0]).repeat()).get_next()

    def model_fn(features: Any, mode: str, params: dict[str, Any]) -> Any:
        step = tf.compat.v1.train.get_global_step()
        loss = tf.reduce_sum(features + batch() if params["has_iterator"] else features)
        return EstimatorSpec(mode, loss=loss, train_op=tf.compat.v1.assign_add(step, 1))

    for has_iterator in (False, True):
        estimator = Estimator(model_fn, str(tmp_path), params={"has_iterator": has_iterator})
        estimator.train(batch, steps=1)
        assert ("starts again with its first element" in caplog.text) == has_iterator


@pytest.mark.parametrize("kind", [CerebrasEstimator, Estimator])
def test_the_graph_of_the_first_model_is_gone_when_training_begins(
    kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CEREBRAS_EXECUTION_MODE", "weight_streaming")
    graphs: list[Any] = []
    alive: list[bool] = []

    def model_fn(features: Any, mode: str, params: Any) -> Any:
        graphs.append(weakref.ref(tf.compat.v1.get_default_graph()))
        loss = tf.reduce_sum(features * tf.compat.v1.get_variable("w", []))
        step = tf.compat.v1.train.get_global_step()
        return EstimatorSpec(mode, loss=loss, train_op=tf.compat.v1.train.AdamOptimizer().minimize(loss, step))

    class Look(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
        def after_create_session(self, session: Any, coord: Any) -> None:
            gc.collect()
            alive.extend(graph() is not None for graph in graphs)

    config = CSRunConfig(cs_config=CSConfig())
    estimator = kind(model_fn, str(tmp_path), config=config, params={})
    estimator.train(lambda params: tf.data.Dataset.from_tensors([1.0]).repeat(), hooks=[Look()], steps=1)
    assert alive == [False, True]
