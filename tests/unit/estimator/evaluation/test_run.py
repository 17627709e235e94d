"""Evaluations: metrics of the spec and of host_call, over the batches asked for."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cerebras_tensorflow import CSRunConfig
from cerebras_tensorflow.estimator.config.run_settings import run_settings
from cerebras_tensorflow.estimator.evaluation.run import evaluation_ops
from cerebras_tensorflow.estimator.model.inputs import InputPipeline
from cerebras_tensorflow.estimator.model.model_call import call_model_fn
from tests.unit.estimator.tiny import BATCH, SAMPLES, arrays, estimator, input_fn, model_fn, v1


def predictions_of(run: Any) -> np.ndarray:
    return np.array([sample["y"] for sample in run.predict(input_fn(epochs=1))])


def test_the_loss_is_the_mean_over_batches_of_the_newest_checkpoint(mode: str, tmp_path: Path) -> None:
    run = estimator(tmp_path).train(input_fn(), steps=3)
    results = run.evaluate(input_fn(epochs=1))
    expected = np.mean(np.square(predictions_of(run) - arrays()[1]))
    assert set(results) == {"loss", "global_step"}
    assert results["loss"] == pytest.approx(expected, rel=1e-5)
    assert results["global_step"] == 3


def test_steps_limit_the_batches(mode: str, tmp_path: Path) -> None:
    run = estimator(tmp_path).train(input_fn(), steps=1)
    errors = np.square(predictions_of(run) - arrays()[1])
    assert run.evaluate(input_fn(), steps=2)["loss"] == pytest.approx(np.mean(errors[: 2 * BATCH]), rel=1e-5)
    with pytest.raises(ValueError, match="Must specify steps > 0"):
        run.evaluate(input_fn(), steps=0)


def test_eval_metric_ops_and_host_call_agree_in_both_modes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def metrics(y: Any, labels: Any) -> Any:
        return {"error": v1.metrics.mean_absolute_error(labels, y), "highest": v1.metrics.percentage_below(y, 0.0)}

    def on_device(mode: str, y: Any, labels: Any) -> Any:
        return {"eval_metric_ops": metrics(y, labels)} if mode == "eval" else {}

    def on_host(mode: str, y: Any, labels: Any) -> Any:
        return {"host_call": (metrics, [y, labels])} if mode == "eval" else {}

    estimator(tmp_path).train(input_fn(), steps=2)
    results = []
    for mode in ("pipelined", "weight_streaming"):
        monkeypatch.setenv("CEREBRAS_EXECUTION_MODE", mode)
        for spec in (on_device, on_host):
            metrics_of_run = estimator(tmp_path, {"spec": spec}).evaluate(input_fn(epochs=1))
            results.append({key: float(value) for key, value in metrics_of_run.items()})
    assert set(results[0]) == {"loss", "error", "highest", "global_step"}
    assert results[0]["error"] > 0
    assert all(result == results[0] for result in results[1:])


def test_a_keras_metric_is_a_metric(mode: str, tmp_path: Path) -> None:
    import tf_keras

    def spec(mode: str, y: Any, labels: Any) -> Any:
        if mode != "eval":
            return {}
        metric = tf_keras.metrics.MeanSquaredError()
        metric.update_state(labels, y)
        return {"eval_metric_ops": {"squared": metric}}

    estimator(tmp_path).train(input_fn(), steps=1)
    results = estimator(tmp_path, {"spec": spec}).evaluate(input_fn(epochs=1))
    assert results["squared"] == pytest.approx(results["loss"], rel=1e-5)


def test_an_input_without_a_batch_is_an_error(mode: str, tmp_path: Path) -> None:
    estimator(tmp_path).train(input_fn(), steps=1)
    with pytest.raises(ValueError, match="the input has no batch"):
        estimator(tmp_path).evaluate(input_fn(samples=BATCH - 1, epochs=1))


def test_without_a_checkpoint_the_initial_values_are_evaluated(
    mode: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "tensorflow"):
        results = estimator(tmp_path).evaluate(input_fn(epochs=1))
    assert "Could not find trained model" in caplog.text
    assert results["global_step"] == 0 and np.isfinite(results["loss"])


def test_a_given_checkpoint_is_used(mode: str, tmp_path: Path) -> None:
    run = estimator(tmp_path, save_checkpoints_steps=1).train(input_fn(), max_steps=3)
    name = "model-ckpt-1" if mode == "weight_streaming" else "model.ckpt-1"
    assert run.evaluate(input_fn(), steps=1, checkpoint_path=str(tmp_path / name))["global_step"] == 1


def test_a_checkpoint_of_one_mode_serves_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CEREBRAS_EXECUTION_MODE", "weight_streaming")
    run = estimator(tmp_path).train(input_fn(), steps=2)
    streamed = run.evaluate(input_fn(), steps=2)
    monkeypatch.setenv("CEREBRAS_EXECUTION_MODE", "pipelined")
    assert run.evaluate(input_fn(), steps=2) == streamed


def test_a_named_evaluation_writes_its_own_events(mode: str, tmp_path: Path) -> None:
    run = estimator(tmp_path).train(input_fn(), steps=1)
    results = run.evaluate(input_fn(), steps=1, name="small")
    (events,) = (tmp_path / "eval_small").glob("events.out.tfevents.*")
    summaries = {
        value.tag: value.simple_value
        for event in v1.train.summary_iterator(str(events))
        for value in event.summary.value
    }
    assert summaries["loss"] == pytest.approx(float(results["loss"]))


def test_hooks_and_evaluation_hooks_see_every_batch(mode: str, tmp_path: Path) -> None:
    class Count(v1.train.SessionRunHook):
        def __init__(self) -> None:
            self.runs = 0

        def after_run(self, run_context: Any, run_values: Any) -> None:
            self.runs += 1

    mine, theirs = Count(), Count()
    estimator(tmp_path).train(input_fn(), steps=1)
    run = estimator(tmp_path, {"spec": lambda mode, y, labels: {"evaluation_hooks": [theirs]}})
    run.evaluate(input_fn(epochs=1), hooks=[mine])
    assert mine.runs == theirs.runs == SAMPLES // BATCH


def test_a_lookup_table_of_the_model_is_initialized(mode: str, tmp_path: Path) -> None:
    def spec(mode: str, y: Any, labels: Any) -> Any:
        table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([0], [5.0]), -1.0)
        return {"eval_metric_ops": {"found": v1.metrics.mean(table.lookup(tf.constant([0])))}} if mode == "eval" else {}

    estimator(tmp_path).train(input_fn(), steps=1)
    assert estimator(tmp_path, {"spec": spec}).evaluate(input_fn(), steps=1)["found"] == 5.0


def test_an_evaluation_does_not_run_the_train_op(mode: str, tmp_path: Path) -> None:
    def trains_always(mode: str, y: Any, labels: Any) -> Any:
        if mode == "train":
            return {}
        step = v1.train.get_global_step()
        return {"train_op": v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_mean(y - labels), step)}

    run = estimator(tmp_path).train(input_fn(), steps=1)
    expected = run.evaluate(input_fn(epochs=1))
    assert estimator(tmp_path, {"spec": trains_always}).evaluate(input_fn(epochs=1)) == expected
    settings = run_settings(CSRunConfig())
    model = call_model_fn(
        model_fn, InputPipeline(input_fn(), {}, "eval", settings), "eval", {"spec": trains_always}, settings
    )
    types = {node.op for node in model.step(evaluation_ops(model).roots).graph_def.node}
    assert "AssignAddVariableOp" in types  # of the mean loss
    assert "ResourceApplyGradientDescent" not in types
