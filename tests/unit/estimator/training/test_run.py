"""Training runs: number of steps, checkpoints, logs, and what a run on the CS refuses."""

from __future__ import annotations

import json
import logging
import os
import signal
import stat
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import tensorflow as tf

from cerebras_tensorflow import CerebrasEstimator
from cerebras_tensorflow.errors import CerebrasError, CollectiveError, SystemNotFoundError
from cerebras_tensorflow.estimator.training import run as training_run
from cerebras_tensorflow.saver.checkpoint_reader import checkpoints_newest_first
from cerebras_tensorflow.system import jobs
from tests.unit.estimator.tiny import BATCH, SAMPLES, estimator, input_fn, model_fn, v1


def steps_saved(model_dir: Path) -> list[int]:
    return sorted(int(path.rpartition("-")[2]) for path in checkpoints_newest_first(str(model_dir)))


def final_step(trained: CerebrasEstimator) -> int:
    return int(trained.get_variable_value("global_step"))


def test_both_modes_end_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = []
    for mode in ("pipelined", "weight_streaming"):
        monkeypatch.setenv("CEREBRAS_EXECUTION_MODE", mode)
        trained = estimator(tmp_path / mode).train(input_fn(), steps=5)
        weights.append({name: trained.get_variable_value(name).tobytes() for name in trained.get_variable_names()})
    assert weights[0] == weights[1]
    assert set(weights[0]) >= {"w", "w/Adam", "out", "global_step", "beta1_power"}


def test_with_umask_0_nobody_else_may_write_what_a_run_makes(mode: str, tmp_path: Path, home: Path) -> None:
    before = os.umask(0)
    try:
        trained = estimator(tmp_path / "model").train(input_fn(), steps=2)
        trained.evaluate(input_fn(), steps=1)
        job = jobs.submit(home, "cs2", "pipelined")
        job.finish(jobs.SUCCEEDED)
        assert os.umask(0) == 0
    finally:
        os.umask(before)
    made = [home, *home.rglob("*"), tmp_path / "model", *(tmp_path / "model").rglob("*")]
    assert len(made) > 15
    assert not [path for path in made if path.stat().st_mode & stat.S_IWOTH]


def test_steps_count_from_the_restored_step_and_max_steps_does_not(mode: str, tmp_path: Path) -> None:
    estimator(tmp_path).train(input_fn(), steps=2)
    assert final_step(estimator(tmp_path).train(input_fn(), steps=2)) == 4
    assert final_step(estimator(tmp_path).train(input_fn(), max_steps=5)) == 5


def test_a_finished_run_logs_that_it_skips_training_and_does_not_call_model_fn(
    mode: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    estimator(tmp_path).train(input_fn(), max_steps=2)

    def failing(params: Any, mode: str, y: Any, labels: Any) -> Any:
        raise AssertionError("called")

    with caplog.at_level(logging.INFO, "tensorflow"):
        estimator(tmp_path, {"spec": failing}).train(input_fn(), max_steps=2)
    assert "Skipping training since max_steps has already saved" in caplog.text


def test_a_resumed_run_ends_with_the_same_bits_as_an_unbroken_one(mode: str, tmp_path: Path) -> None:
    def from_start_of(step: int) -> Any:
        return lambda: input_fn()().skip(step)

    unbroken = estimator(tmp_path / "a").train(from_start_of(0), max_steps=5)
    estimator(tmp_path / "b").train(from_start_of(0), max_steps=3)
    resumed = estimator(tmp_path / "b").train(from_start_of(3), max_steps=5)
    for name in unbroken.get_variable_names():
        assert unbroken.get_variable_value(name).tobytes() == resumed.get_variable_value(name).tobytes()


def test_checkpoints_are_saved_at_the_start_the_interval_and_the_end(mode: str, tmp_path: Path) -> None:
    estimator(tmp_path, save_checkpoints_steps=2, keep_checkpoint_max=None).train(input_fn(), max_steps=5)
    assert steps_saved(tmp_path) == [0, 2, 4, 5]
    name = "model-ckpt-5" if mode == "weight_streaming" else "model.ckpt-5"
    assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / name)


def test_old_checkpoints_are_deleted(mode: str, tmp_path: Path) -> None:
    estimator(tmp_path, save_checkpoints_steps=1, keep_checkpoint_max=2).train(input_fn(), max_steps=5)
    assert steps_saved(tmp_path) == [4, 5]


def test_the_end_of_the_input_ends_the_run_and_saves_a_checkpoint(
    mode: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trained = estimator(tmp_path).train(input_fn(epochs=1), max_steps=100)
    steps = SAMPLES // BATCH
    assert final_step(trained) == steps
    assert f"The input ended at step {steps}, before step 100" in caplog.text


def test_performance_json_has_the_seven_fields_and_marks_simulated_ones(mode: str, tmp_path: Path) -> None:
    estimator(tmp_path).train(input_fn(), max_steps=3)
    report = json.loads((tmp_path / "performance" / "performance.json").read_text())
    assert report.pop("simulated") == ["est_samples_per_sec"]
    assert set(report) == {
        "compile_time", "est_samples_per_sec", "programming_time", "samples_per_sec", "suspected_input_bottleneck",
        "total_samples", "total_time",
    }  # fmt: skip
    assert report["total_samples"] == 3 * BATCH
    assert report["samples_per_sec"] > 0 and report["total_time"] > 0
    assert report["compile_time"] > 0 and report["est_samples_per_sec"] > 0


def test_a_second_run_uses_the_compiled_program(mode: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    estimator(tmp_path).train(input_fn(), max_steps=1)
    assert "Cached compilation found" not in caplog.text
    with caplog.at_level(logging.INFO, "tensorflow"):
        estimator(tmp_path).train(input_fn(), max_steps=2)
    assert "Cached compilation found for this model configuration" in caplog.text
    assert json.loads((tmp_path / "performance" / "performance.json").read_text())["compile_time"] == 0
    (folder,) = tmp_path.glob("tfcs_*")
    assert {"schedule.txt", "memory_plan.txt", "compile_report.txt"} <= {path.name for path in folder.iterdir()}


def test_a_loss_that_is_not_finite_names_the_step_and_the_last_good_checkpoint(mode: str, tmp_path: Path) -> None:
    def spec(mode: str, y: Any, labels: Any) -> Any:
        bad = tf.equal(v1.train.get_global_step(), 3)
        loss = tf.reduce_mean(tf.square(y - labels)) + tf.where(bad, float("nan"), 0.0)
        return {"loss": loss, "train_op": v1.train.AdamOptimizer(0.01).minimize(loss, v1.train.get_global_step())}

    run = estimator(tmp_path, {"spec": spec}, save_checkpoints_steps=2)
    with pytest.raises(v1.train.NanLossDuringTrainingError, match=r"loss of step 4 is nan.*ckpt-2\."):
        run.train(input_fn(), max_steps=10)
    assert steps_saved(tmp_path) == [0, 2]


@pytest.mark.parametrize(
    "limits, text",
    [
        ({"steps": 1, "max_steps": 1}, "Can not provide both steps and max_steps"),
        ({"steps": 0}, "Must specify steps > 0, given: 0"),
        ({"max_steps": -1}, "Must specify max_steps > 0, given: -1"),
    ],
)
def test_invalid_step_limits_are_refused(limits: dict[str, int], text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=text):
        estimator(tmp_path).train(input_fn(), **limits)


def test_user_hooks_are_refused_in_a_run_on_the_cs(cs_ip: str, tmp_path: Path) -> None:
    run = estimator(tmp_path, cs_ip=cs_ip)
    with pytest.raises(CerebrasError, match="hooks are not supported in a run on the CS system"):
        run.train(input_fn(), hooks=[v1.train.LoggingTensorHook([], every_n_iter=1)], steps=1)
    run.train(input_fn(), hooks=[v1.train.StopAtStepHook(1)], steps=2, use_cs=False)
    assert final_step(run) == 1


def test_eval_metric_ops_in_a_training_spec_are_refused_on_the_cs(cs_ip: str, tmp_path: Path) -> None:
    def spec(mode: str, y: Any, labels: Any) -> Any:
        return {"eval_metric_ops": {"mean": v1.metrics.mean(y)}}

    run = estimator(tmp_path, {"spec": spec}, cs_ip=cs_ip)
    with pytest.raises(CerebrasError) as raised:
        run.train(input_fn(), steps=1)
    text = "[Unsupported TensorFlow] Detected unsupported eval_metric_ops in CS system training run."
    assert str(raised.value) == text
    assert final_step(run.train(input_fn(), steps=1, use_cs=False)) == 1


def test_an_address_without_a_system_is_refused(mode: str, tmp_path: Path) -> None:
    with pytest.raises(SystemNotFoundError, match=r"127\.0\.0\.1:1"):
        estimator(tmp_path, cs_ip="127.0.0.1:1").train(input_fn(), steps=1)


def test_the_error_of_a_checkpoint_without_a_variable_names_it(mode: str, tmp_path: Path) -> None:
    estimator(tmp_path).train(input_fn(), steps=1)

    def wider(features: Any, labels: Any, mode: str) -> Any:
        v1.get_variable("extra", [3])
        return model_fn(features, labels, mode, {})

    with pytest.raises(CerebrasError, match="lacks 1 of this model's variables: extra"):
        CerebrasEstimator(wider, str(tmp_path)).train(input_fn(), steps=1)


def test_training_lowers_the_loss_of_fixed_data(mode: str, tmp_path: Path) -> None:
    trained = estimator(tmp_path)
    trained.train(input_fn(), steps=1)
    before = trained.evaluate(input_fn(epochs=1))["loss"]
    trained.train(input_fn(), steps=59)
    assert trained.evaluate(input_fn(epochs=1))["loss"] < 0.9 * before


def test_saves_count_from_the_last_save_after_a_resume(mode: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"save_checkpoints_steps": 5, "keep_checkpoint_max": 0}
    estimator(tmp_path, **settings).train(input_fn(), max_steps=7)
    estimator(tmp_path, **settings).train(input_fn(), max_steps=13)
    base = "model.ckpt" if mode == "pipelined" else "model-ckpt"
    steps = {int(path.name.removeprefix(f"{base}-").split(".")[0]) for path in tmp_path.glob(f"{base}-*")}
    assert steps == {0, 5, 7, 12, 13}


@pytest.mark.parametrize("store", [None, "of several CSX"])
def test_a_csx_lost_after_a_signal_ends_the_run_without_an_error_only_if_it_held_no_weights(store: Any) -> None:
    creator: Any = SimpleNamespace(session=SimpleNamespace(is_between_steps=True), csx=SimpleNamespace(store=store))
    watch, signals = cast("Any", SimpleNamespace(step=2)), cast("Any", SimpleNamespace(received=signal.SIGINT))
    with (
        pytest.raises(CollectiveError) if store else nullcontext(),
        training_run._saving_after_a_lost_csx(watch, creator, signals),
    ):
        raise CollectiveError("rank 1 ended without an error.")
