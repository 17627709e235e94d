"""Evaluations inside a training run, in both execution modes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from cerebras_tensorflow.estimator.in_memory_evaluator import InMemoryEvaluatorHook
from cerebras_tensorflow.estimator.training.early_stopping import read_eval_metrics
from tests.unit.estimator.tiny import estimator, input_fn, v1


def test_the_evaluator_sees_streamed_weights_and_does_not_change_them(mode: str, tmp_path: Path) -> None:
    alone = estimator(tmp_path / "alone").train(input_fn(), max_steps=4)
    watched = estimator(tmp_path / "watched")
    hook = InMemoryEvaluatorHook(watched, input_fn(epochs=1), every_n_iter=2)
    watched.train(input_fn(), hooks=[hook], max_steps=4)
    read = read_eval_metrics(watched.eval_dir())
    assert sorted(read) == [0, 2, 4]
    assert np.isclose(read[4]["loss"], alone.evaluate(input_fn(epochs=1))["loss"], rtol=1e-6)
    for name in ("w", "out"):
        assert np.array_equal(alone.get_variable_value(name), watched.get_variable_value(name))


def test_a_variable_of_the_evaluation_alone_keeps_its_initial_value(mode: str, tmp_path: Path) -> None:
    def shifted(mode: str, y: Any, labels: Any) -> Any:
        if mode != "eval":
            return {}
        shift = v1.get_variable("shift", [64, 64], initializer=v1.constant_initializer(2.0))
        return {"eval_metric_ops": {"shift": v1.metrics.mean(shift)}}

    run = estimator(tmp_path, {"spec": shifted})
    run.train(input_fn(), hooks=[InMemoryEvaluatorHook(run, input_fn(epochs=1))], max_steps=1)
    assert [metrics["shift"] for metrics in read_eval_metrics(run.eval_dir()).values()] == [2.0, 2.0]
