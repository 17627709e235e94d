"""train_and_evaluate where it differs from tf.estimator: input workers, and a checkpoint removed while it is read."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from cerebras_tensorflow.estimator.config.run_config import RunConfig
from cerebras_tensorflow.estimator.evaluation.evaluator import Evaluator
from cerebras_tensorflow.estimator.tf_estimator import Estimator
from cerebras_tensorflow.estimator.train_and_evaluate import EvalSpec, TrainSpec, train_and_evaluate
from cerebras_tensorflow.saver.model_dir import retention
from cerebras_tensorflow.system import jobs, registry
from tests.unit.estimator.tiny import estimator, input_fn, model_fn, v1

CLUSTER = {"chief": ["a:1"], "worker": ["b:2"], "ps": ["c:3"]}


def as_task(patch: pytest.MonkeyPatch, kind: str) -> None:
    patch.setenv("TF_CONFIG", json.dumps({"cluster": CLUSTER, "task": {"type": kind, "index": 0}}))


def plain(model_dir: Path) -> Estimator:
    return Estimator(model_fn, str(model_dir), RunConfig(save_checkpoints_steps=2))


def test_a_worker_task_of_a_cerebras_estimator_trains_and_evaluates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    as_task(monkeypatch, "worker")
    result = train_and_evaluate(estimator(tmp_path), TrainSpec(input_fn(), 2), EvalSpec(input_fn(epochs=1)))
    assert result is not None
    assert result[0] is not None
    assert result[0]["global_step"] == 2


def test_a_checkpoint_removed_during_its_evaluation_is_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = plain(tmp_path).train(input_fn(), max_steps=2)

    class Removes(v1.train.SessionRunHook):  # type: ignore[misc]
        def begin(self) -> None:
            path = run.latest_checkpoint()
            assert path is not None
            retention.remove(path)

    evaluator = Evaluator(run, EvalSpec(input_fn(epochs=1), hooks=[Removes()]), 4)
    with caplog.at_level(logging.WARNING, "tensorflow"):
        assert evaluator.evaluate_beside_training() is None
    assert "was removed while it was evaluated" in caplog.text
    assert "keep_checkpoint_max" in caplog.text


def test_other_errors_of_an_evaluation_reach_the_caller(tmp_path: Path) -> None:
    def broken() -> Any:
        raise RuntimeError("no data")

    run = plain(tmp_path).train(input_fn(), max_steps=2)
    with pytest.raises(RuntimeError, match="no data"):
        Evaluator(run, EvalSpec(broken), 4).evaluate_beside_training()


def test_an_evaluator_that_waits_for_the_system_says_for_which_job(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain(tmp_path).train(input_fn(), max_steps=2)
    monkeypatch.setenv("CEREBRAS_EXECUTION_MODE", "weight_streaming")
    registry.find(None)
    training = jobs.submit(home, "cs2-embedded", "weight_streaming", "train elsewhere")
    training.wait_for_wafer(lambda: True)

    class EndsTraining(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "Waiting for the system" in record.getMessage():
                training.finish(jobs.SUCCEEDED)

    handler = EndsTraining()
    logging.getLogger("tensorflow").addHandler(handler)
    try:
        with caplog.at_level(logging.INFO, "tensorflow"):
            assert Evaluator(plain(tmp_path), EvalSpec(input_fn(epochs=1)), 2).evaluate_beside_training() is not None
    finally:
        logging.getLogger("tensorflow").removeHandler(handler)
    (line,) = [line for line in caplog.messages if "Waiting for the system" in line]
    assert f"to evaluate {tmp_path}: cs2-embedded is busy with job 1 ({training.id})" in line
