"""Sparse training gives the same bits in both modes and all stores; masked weights and their slots stay zero."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from cerebras_tensorflow import CerebrasEstimator, CSConfig, CSEstimatorSpec, CSRunConfig
from cerebras_tensorflow.errors import SettingsError
from cerebras_tensorflow.estimator.execution import store_choice
from cerebras_tensorflow.perf.html import page
from cerebras_tensorflow.sparsity import DynamicSparsityAlgorithm
from reference_implementations.common.optimizers.make import training_step
from reference_implementations.common.sections import OptimizerSettings

v1 = tf.compat.v1
SHAPE = (4, 64)
BATCH, SAMPLES = 4, 24
RIGL = {
    "algorithm": "rigl",
    "sparsity": 0.75,
    "update": {"freq": 2, "stop": 8},
    "drop_fraction": {"type": "cosine", "init": 0.4, "half_period": 8},
}
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: v1.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: v1.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "adam": lambda: v1.train.AdamOptimizer(0.01),
    "adagrad": lambda: v1.train.AdagradOptimizer(0.1),
    "rmsprop": lambda: v1.train.RMSPropOptimizer(0.01, momentum=0.9),
    "adadelta": lambda: v1.train.AdadeltaOptimizer(1.0),
    "ftrl": lambda: v1.train.FtrlOptimizer(0.1),
    "keras_sgd": lambda: tf_keras.optimizers.legacy.SGD(0.1, momentum=0.9),
    "keras_adamax": lambda: tf_keras.optimizers.legacy.Adamax(0.01),
}
OURS = {
    "adamw": OptimizerSettings(learning_rate=0.01, weight_decay_rate=0.1, max_gradient_norm=0.5),
    "lamb": OptimizerSettings(optimizer_type="lamb", learning_rate=0.01, weight_decay_rate=0.1),
    "adafactor": OptimizerSettings(optimizer_type="adafactor", learning_rate=0.01),
    "scaled": OptimizerSettings(optimizer_type="adam", learning_rate=0.01, loss_scaling_factor="dynamic"),
}


def kernel_and_loss(name: str, x: Any, y: Any) -> tuple[Any, Any]:
    kernel = v1.get_variable(f"{name}/kernel", SHAPE, initializer=v1.random_normal_initializer(stddev=0.3))
    bias = v1.get_variable(f"{name}/bias", [SHAPE[1]], initializer=v1.zeros_initializer())
    error = tf.reduce_sum(tf.tanh(tf.matmul(x, kernel) + bias), axis=1, keepdims=True) - y
    return [kernel, bias], tf.reduce_mean(error * error)


def many_optimizers(features: Any, labels: Any, mode: str) -> Any:
    """A kernel and a bias for each optimizer."""
    train_ops, losses = [], []
    for name, make in OPTIMIZERS.items():
        variables, loss = kernel_and_loss(name, features, labels)
        losses.append(loss)
        optimizer = make()
        pairs = zip(tf.gradients(loss, variables), variables, strict=True)
        train_ops.append(optimizer.apply_gradients(list(pairs)))
    with tf.control_dependencies(train_ops):
        train_op = v1.assign_add(v1.train.get_global_step(), 1)
    return CSEstimatorSpec(mode, loss=tf.add_n(losses), train_op=train_op)


def our_optimizer(settings: OptimizerSettings) -> Callable[..., Any]:
    def model_fn(features: Any, labels: Any, mode: str) -> Any:
        _, loss = kernel_and_loss("ours", features, labels)
        return CSEstimatorSpec(mode, loss=loss, train_op=training_step(loss, settings) if mode == "train" else None)

    return model_fn


def batches(size: int = BATCH) -> Any:
    random = np.random.default_rng(1)
    x = random.normal(size=(SAMPLES, SHAPE[0])).astype(np.float32)
    y = random.normal(size=(SAMPLES, 1)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(size, drop_remainder=True)


class Run:
    """Trains in one mode and store; returns the variables of the last checkpoint."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.monkeypatch, self.folder = monkeypatch, tmp_path
        self.skipped = 0  # batches before the first one
        self.batch = BATCH
        self.warm_start: str | None = None

    def __call__(
        self,
        model_fn: Callable[..., Any],
        kind: str = "pipelined",
        sparsity: Any = RIGL,
        steps: int = 6,
        name: str | None = None,
        **settings: Any,
    ) -> dict[str, np.ndarray]:
        self.monkeypatch.setenv("CEREBRAS_EXECUTION_MODE", "pipelined" if kind == "pipelined" else "weight_streaming")
        store = {"memory": "memory", "mapped": "file", "file": "file"}.get(kind, "auto")
        if kind == "file":
            self.monkeypatch.setattr(store_choice, "MEMORY_SHARE", 0.0)
        cs = CSConfig(min_stream_bytes=100, weight_store=store, **settings)
        config = CSRunConfig(cs_config=cs, tf_random_seed=1, save_summary_steps=None, log_step_count_steps=None)
        self.estimator = CerebrasEstimator(
            model_fn, str(self.folder / (name or kind)), config=config, warm_start_from=self.warm_start
        )
        self.estimator.train(lambda: batches(self.batch).skip(self.skipped), max_steps=steps, sparsifier=sparsity)
        return {key: self.estimator.get_variable_value(key) for key in self.estimator.get_variable_names()}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    return Run(monkeypatch, tmp_path)


def assert_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    assert [name for name in one if one[name].tobytes() != other[name].tobytes()] == []


def assert_masked(values: dict[str, np.ndarray], sparsity: float) -> None:
    masks = [name for name in values if name.endswith("_mask")]
    assert masks
    for name in masks:
        mask = values[name]
        assert mask.dtype == bool
        assert (~mask).mean() == sparsity, name
        weight = name.removesuffix("_mask")
        family = [key for key in values if key.startswith(weight) and key != name and values[key].shape == mask.shape]
        for each in family:
            assert not values[each][~mask].any(), each
            assert np.isfinite(values[each]).all(), each
        assert (values[weight][mask] != 0).mean() > 0.5


def test_any_optimizer_in_both_modes_and_all_stores(run: Run) -> None:
    pipelined = run(many_optimizers)
    assert {f"{name}/kernel_mask" for name in OPTIMIZERS} == {name for name in pipelined if name.endswith("_mask")}
    assert_masked(pipelined, 0.75)
    for store in ("memory", "mapped", "file"):
        assert_same(pipelined, run(many_optimizers, store))


@pytest.mark.parametrize("name", OURS)
def test_the_optimizers_of_the_reference_models(name: str, run: Run) -> None:
    pipelined = run(our_optimizer(OURS[name]))
    assert_masked(pipelined, 0.75)
    assert_same(pipelined, run(our_optimizer(OURS[name]), "file"))


def with_unused_head(features: Any, labels: Any, mode: str) -> Any:
    """A model with a second output that has no loss, like BERT's without next-sentence loss."""
    variables, loss = kernel_and_loss("ours", features, labels)
    kernel_and_loss("head", features, labels)
    assert len(v1.trainable_variables()) == len(variables) + 2
    return CSEstimatorSpec(mode, loss=loss, train_op=training_step(loss, OURS["adamw"]))


@pytest.mark.parametrize("method", ["rigl", "set"])
def test_a_mask_stays_if_the_loss_does_not_depend_on_the_weight(
    method: str, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    sparsity = {**RIGL, "algorithm": method}
    pipelined = run(with_unused_head, sparsity=sparsity)
    first = run(with_unused_head, sparsity=sparsity, steps=1, name="first")
    np.testing.assert_array_equal(pipelined["head/kernel_mask"], first["head/kernel_mask"])
    assert (pipelined["ours/kernel_mask"] != first["ours/kernel_mask"]).any()
    assert (~pipelined["head/kernel_mask"]).mean() == 0.75
    caplog.clear()
    assert_same(pipelined, run(with_unused_head, "file", sparsity))
    assert [one.getMessage() for one in caplog.records if "does not depend" in one.getMessage()] == [
        "Sparsity: the loss does not depend on head/kernel. Masks of these weights stay."
    ]


class Shifted(DynamicSparsityAlgorithm):
    """A method of a user: the mask moves by one column at each update."""

    def update_mask(self, p: Any, mask: Any, sparsity: Any, step: int) -> Any:
        return np.roll(mask, step, axis=1)


ADAMW = our_optimizer(OURS["adamw"])
METHODS = {
    "static": {"sparsity": 0.5, "init_method": "topk"},
    "gmp": {"algorithm": "gmp", "schedule": {"type": "linear", "init": 0.0, "slope": 0.125}, "update": {"freq": 2}},
    "set": {"algorithm": "set", "sparsity": [0.75, 0.625, 0.5], "update": {"steps": [0, 2, 4]}},
    "shifted": {"algorithm": "shifted", "sparsity": 0.75, "update": {"freq": 4}, "init_method": "checkerboard"},
}


@pytest.mark.parametrize("method", METHODS)
def test_each_method_in_micro_batches_and_after_a_restart(method: str, run: Run) -> None:
    sparsity = METHODS[method]
    whole = run(ADAMW, "file", sparsity, micro_batch_size=2)
    assert_masked(whole, {"static": 0.5, "set": 0.5}.get(method, 0.75))  # gmp: 6 steps of 0.125
    run(ADAMW, "pipelined", sparsity, 3, "broken", micro_batch_size=2)
    run.skipped = 3
    assert_same(whole, run(ADAMW, "pipelined", sparsity, 6, "broken", micro_batch_size=2))


@pytest.mark.slow
def test_several_csx_choose_the_masks_of_one(run: Run) -> None:
    one = run(ADAMW, sparsity=RIGL, micro_batch_size=2)
    run.batch = 2
    assert_same(one, run(ADAMW, sparsity=RIGL, name="two", micro_batch_size=2, num_csx=2))


def test_a_sparse_run_may_start_dense_and_a_dense_run_sparse(run: Run) -> None:
    run(ADAMW, "file", None, 2, "turned_sparse")
    late = run(ADAMW, "file", METHODS["static"], 4, "turned_sparse")
    assert_masked(late, 0.5)
    mask = late["ours/kernel_mask"]
    run.warm_start = str(run.folder / "turned_sparse" / "model-ckpt-4")
    sparse_again = run(ADAMW, "pipelined", {"sparsity": 0.5}, 2, "sparse_again")
    np.testing.assert_array_equal(sparse_again["ours/kernel_mask"], mask)
    dense = run(ADAMW, "pipelined", None, 2, "dense_again")
    assert "ours/kernel_mask" not in dense
    assert dense["ours/kernel"][~mask].any()


def test_what_is_sparse_is_in_a_report_and_the_log(
    run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CEREBRAS_REPORT", "1")
    with caplog.at_level("INFO", "tensorflow"):
        run(ADAMW, sparsity=METHODS["set"], steps=2)
    assert "Sparsity at global step 0: 192 of 256 weights are zero, in 1 of 1 variables." in caplog.text
    report = json.loads((run.folder / "pipelined" / "sparsity.json").read_text())
    assert report["global_step"] == 2
    row = {"shape": [4, 64], "algorithm": "set", "target": 0.625, "actual": 0.625}
    assert report["weights"] == {"ours/kernel": row}
    (summary,) = run.folder.rglob("model_summary.txt")
    assert re.search(r"ours/kernel +62\.5%", summary.read_text())  # when the run ends, not later
    html = run.folder / "pipelined" / "report.html"
    assert not page.is_available() or "62.50% zeros" in html.read_text(encoding="utf-8")


TOO_STEEP = {"algorithm": "gmp", "sparsity": {"type": "linear", "init": 0.0, "slope": 0.2}}


@pytest.mark.parametrize(
    "sparsity", [{"sparsity": 0.5, "param_filter": "nothing/*"}, {"algorithm": "rgl"}, 1.0, -0.1, TOO_STEEP]
)
def test_bad_settings_are_refused_before_anything_is_written(sparsity: Any, run: Run) -> None:
    expected = r"matches no weight .* are ours/kernel|did you mean 'rigl'|in \[0, 1\)|reaches 1 by step 6"
    with pytest.raises(SettingsError, match=expected):
        run(ADAMW, sparsity=sparsity)
    assert [path.name for path in run.folder.rglob("*") if path.is_file()] == []
