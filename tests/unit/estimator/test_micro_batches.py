"""micro_batch_size in runs of an estimator: training, evaluation, prediction and compile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cerebras_tensorflow import CerebrasEstimator, CSConfig, CSRunConfig
from cerebras_tensorflow.config import env
from cerebras_tensorflow.errors import MemoryBudgetError, SettingsError
from tests.unit.estimator.tiny import BATCH, MODES, input_fn, model_fn

v1 = tf.compat.v1


def cut(model_dir: Path, micro_batch_size: Any = 2, params: Any = None, model: Any = model_fn, **cs: Any) -> Any:
    """An estimator that computes batches in parts."""
    config = CSRunConfig(
        cs_config=CSConfig(min_stream_bytes=100, micro_batch_size=micro_batch_size, **cs), tf_random_seed=1
    )
    return CerebrasEstimator(model, str(model_dir), config=config, params=params or {})


@pytest.fixture
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The execution mode of the interpreter."""
    monkeypatch.setenv("CEREBRAS_EXECUTION_MODE", request.param)
    return str(request.param)


@pytest.mark.parametrize("mode", MODES, indirect=True)
def test_training_is_close_to_that_of_whole_batches_and_evaluates_the_same(mode: str, tmp_path: Path) -> None:
    assert mode == env.read().execution_mode
    results = []
    for size in (None, 2, 1):
        estimator = cut(tmp_path / str(size), size)
        estimator.train(input_fn(), max_steps=4)
        results.append(estimator.evaluate(input_fn(), steps=3))
    for result in results[1:]:
        assert result["global_step"] == 4
        assert result["loss"] == pytest.approx(results[0]["loss"], rel=1e-4)


def test_a_stopped_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    def dropping(features: Any, labels: Any, mode: str, params: Any) -> Any:
        return model_fn({"x": v1.nn.dropout(features["x"], rate=0.5)}, labels, mode, params)

    for name, ends in (("at_once", [4]), ("stopped", [1, 4])):
        for end in ends:
            skipped = 1 if end == 4 and name == "stopped" else 0
            data = lambda skipped=skipped: input_fn()().skip(skipped)  # noqa: E731
            cut(tmp_path / name, 1, model=dropping).train(data, max_steps=end)
    at_once, stopped = (cut(tmp_path / name, 1) for name in ("at_once", "stopped"))
    for name in at_once.get_variable_names():
        assert at_once.get_variable_value(name).tobytes() == stopped.get_variable_value(name).tobytes()


def test_evaluation_counts_whole_batches_and_merges_metrics_exactly(tmp_path: Path) -> None:
    def with_metric(mode: str, y: Any, labels: Any) -> dict[str, Any]:
        metric = v1.metrics.mean_absolute_error(labels, y)
        return {"eval_metric_ops": {"mae": metric}} if mode == "eval" else {}

    whole = cut(tmp_path, None, {"spec": with_metric})
    whole.train(input_fn(), max_steps=1)
    expected = whole.evaluate(input_fn(), steps=3)
    seen: list[int] = []

    class Count(v1.train.SessionRunHook):
        def after_run(self, run_context: Any, run_values: Any) -> None:
            seen.append(1)

    result = cut(tmp_path, 1, {"spec": with_metric}).evaluate(input_fn(), steps=3, hooks=[Count()])
    assert len(seen) == 3 * BATCH
    assert result["mae"] == pytest.approx(expected["mae"], rel=1e-6)


def test_predictions_keep_their_order_and_batches(tmp_path: Path) -> None:
    cut(tmp_path).train(input_fn(), max_steps=1)
    whole = list(cut(tmp_path, None).predict(input_fn(epochs=1)))
    parts = list(cut(tmp_path, 2).predict(input_fn(epochs=1)))
    np.testing.assert_allclose([one["y"] for one in parts], [one["y"] for one in whole], atol=1e-6)
    batches = list(cut(tmp_path, 2).predict(input_fn(epochs=1), yield_single_examples=False))
    assert {one["y"].shape for one in batches} == {(BATCH, 1)}


def test_params_of_the_input_section_override_the_config_and_give_the_model_its_batch_size(tmp_path: Path) -> None:
    sizes: list[Any] = []

    def model(features: Any, labels: Any, mode: str, params: Any) -> Any:
        sizes.append((features["x"].shape[0], params["train_input"]["batch_size"]))
        return model_fn(features, labels, mode, {})

    params = {"train_input": {"batch_size": BATCH, "micro_batch_size": 1}}
    cut(tmp_path, 2, params, model).train(input_fn(), max_steps=1)
    assert set(sizes) == {(1, 1)}


@pytest.mark.parametrize(
    "size, message",
    [
        (3, "micro_batch_size is 3, and the batch has 4 samples. Choose one of 1, 2, 4"),
        ("explore", "only compares sizes"),
    ],
)
def test_a_size_that_cannot_be_used_is_refused(size: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=message):
        cut(tmp_path, size).train(input_fn(), max_steps=1)


def test_a_batch_of_any_length_is_refused(tmp_path: Path) -> None:
    def open_ended() -> Any:
        return input_fn()().unbatch().batch(BATCH)

    with pytest.raises(SettingsError, match="drop_remainder=True"):
        cut(tmp_path, 2).train(open_ended, max_steps=1)


@pytest.mark.parametrize("value", [0, -1, "some", True, {"explore": {"low": 1}}, 1.5])
def test_an_unknown_setting_is_refused(value: Any) -> None:
    with pytest.raises(SettingsError, match=r"micro_batch_size is .*: expected a number of samples"):
        CSConfig(micro_batch_size=value)


def test_explore_recommends_a_size_and_compiles_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    estimator = cut(tmp_path, {"explore": {"max": 2}})
    with caplog.at_level("INFO"):
        estimator.compile(input_fn())
    assert "micro_batch_size 2: the step takes" in caplog.text
    assert "micro_batch_size 1: the step takes" in caplog.text
    assert "micro_batch_size 4" not in caplog.text
    assert "Recommended: micro_batch_size: 2" in caplog.text
    assert len(list(tmp_path.glob("tfcs_*"))) == 1


@pytest.mark.parametrize("value", ["explore", "auto"])
def test_sizes_that_several_csx_cannot_share_are_not_tried(
    value: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    params = {"train_input": {"global_batch_size": BATCH}}
    with caplog.at_level("INFO"):
        cut(tmp_path, value, params, num_csx=2, memory_budget="100GB").compile(input_fn())
    assert "micro_batch_size: 2" in caplog.text if value == "explore" else "auto: 2 of 4 samples" in caplog.text
    assert "micro_batch_size 4" not in caplog.text


def test_auto_takes_the_largest_size_within_the_memory_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from cerebras_tensorflow.estimator.execution import compile_model

    def check(mode: str, options: Any, plan: Any) -> None:
        if plan.activation_bytes > limit:
            raise MemoryBudgetError("too large", plan.activation_bytes)

    limit = 0
    plans: dict[int, int] = {}
    monkeypatch.setattr(
        compile_model, "check_budget", lambda mode, options, plan: plans.update({len(plans): plan.activation_bytes})
    )
    for size in (4, 2):
        cut(tmp_path / str(size), size).train(input_fn(), max_steps=1)
    limit = plans[1]
    assert limit < plans[0], "smaller micro-batches take less memory"
    monkeypatch.setattr(compile_model, "check_budget", check)
    with caplog.at_level("INFO"):
        cut(tmp_path / "auto", "auto", memory_budget="100GB").train(input_fn(), max_steps=1)
    assert "micro_batch_size auto: 2 of 4 samples" in caplog.text


@pytest.mark.parametrize("mode", MODES, indirect=True)
@pytest.mark.parametrize("size", [4, 2, 1, "explore"])
def test_the_budget_that_a_refusal_names_suffices_and_one_byte_less_does_not(
    mode: str, size: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cerebras_tensorflow.compiler.memory import budget
    from cerebras_tensorflow.estimator.execution import compile_model

    check, plans = compile_model.check_budget, []

    def checked(mode: str, options: Any, plan: Any) -> None:
        check(mode, options, plan)
        plans.append(options.process_bytes + plan.peak_bytes)

    def compile_within(num_bytes: int) -> None:
        cut(tmp_path, size, weight_store="file", memory_budget=num_bytes).compile(input_fn())

    monkeypatch.setattr(compile_model, "check_budget", checked)
    monkeypatch.setattr(compile_model, "resident_bytes", lambda: 1_000_000_000)
    with pytest.raises(MemoryBudgetError) as refused:
        compile_within(1)
    needed = refused.value.needed_bytes
    with pytest.raises(MemoryBudgetError) as again:
        compile_within(needed - 1)
    assert again.value.needed_bytes == needed and not plans
    compile_within(needed)
    reserve = budget.Footprint(0, 0, 0, 0, max(plans)).needed_bytes if mode == "weight_streaming" else max(plans)
    assert max(plans) <= reserve <= needed, "the plan leaves the reserve for its own error"
