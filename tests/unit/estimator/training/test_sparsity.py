"""Sparse training: masked weights are zero in every checkpoint, and the others are trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cerebras_tensorflow import CerebrasEstimator, CSConfig, CSEstimatorSpec, CSRunConfig
from cerebras_tensorflow.compat.sparsify import SPARSIFIER_MAP, get_AdamW_aware_sparsifier_class
from cerebras_tensorflow.errors import CerebrasError, SettingsError
from cerebras_tensorflow.estimator.training.sparsity.caller_sparsifier import CallerSparsifier
from cerebras_tensorflow.estimator.training.sparsity.hook import SparsityHook, zeros_as_mask
from cerebras_tensorflow.estimator.training.warm_start import WarmStartSettings
from tests.unit.estimator import tiny

v1 = tf.compat.v1
KERNELS = ("w", "out")


@pytest.fixture
def streaming(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CEREBRAS_EXECUTION_MODE", "weight_streaming")


def zeros(estimator: Any) -> dict[str, np.ndarray]:
    return {name: estimator.get_variable_value(name) == 0 for name in KERNELS}


@pytest.mark.usefixtures("streaming")
@pytest.mark.parametrize("kind", ["topk", "balanced-topk", "constant", "set", "checkerboard"])
def test_half_of_the_weights_are_zero_after_training(kind: str, tmp_path: Path) -> None:
    estimator = tiny.estimator(tmp_path)
    estimator.train(tiny.input_fn(), max_steps=3, sparsifier=SPARSIFIER_MAP[kind](n_iter=100))
    taken = zeros(estimator)
    assert {name: int(taken[name].sum()) for name in KERNELS} == {"w": 128, "out": 32}
    for moment in ("w/Adam", "w/Adam_1"):
        assert not estimator.get_variable_value(moment)[taken["w"]].any()
        assert estimator.get_variable_value(moment)[~taken["w"]].any()


@pytest.mark.usefixtures("streaming")
@pytest.mark.parametrize("kind, n_iter", [("topk", 100), ("set", 2), ("rigl", 2)])
def test_a_resumed_run_ends_with_the_weights_of_an_unbroken_one(kind: str, n_iter: int, tmp_path: Path) -> None:
    whole = tiny.estimator(tmp_path / "whole")
    whole.train(tiny.input_fn(epochs=1), max_steps=6, sparsifier=SPARSIFIER_MAP[kind](n_iter=n_iter))
    for end in (2, 6):
        broken = tiny.estimator(tmp_path / "broken")
        skipped = 0 if end == 2 else 2
        broken.train(
            lambda skipped=skipped: tiny.input_fn(epochs=1)().skip(skipped),
            max_steps=end,
            sparsifier=SPARSIFIER_MAP[kind](n_iter=n_iter),
        )
    for name in KERNELS:
        np.testing.assert_array_equal(whole.get_variable_value(name), broken.get_variable_value(name))


def zero_model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
    """A model with a kernel that begins with zeros, an embedding and a vector."""
    kernel = v1.get_variable("kernel", [4, 64], initializer=v1.zeros_initializer())
    embedding = v1.get_variable("embedding", [64, 8], initializer=v1.random_normal_initializer(stddev=0.1))
    scale = v1.get_variable("scale", [64], initializer=v1.ones_initializer())
    y = tf.reduce_sum(tf.matmul(tf.matmul(features["x"], kernel) * scale, embedding), 1, keepdims=True)
    loss = tf.reduce_mean(tf.square(y - labels))
    train_op = v1.train.AdamOptimizer(0.01).minimize(loss, v1.train.get_global_step())
    return CSEstimatorSpec(mode, loss=loss, train_op=train_op)


def zero_estimator(model_dir: Path) -> CerebrasEstimator:
    config = CSRunConfig(cs_config=CSConfig(min_stream_bytes=100), save_summary_steps=None, log_step_count_steps=None)
    return CerebrasEstimator(zero_model_fn, str(model_dir), config=config, params={})


def first_column(value: float) -> Any:
    """An input_fn whose first feature is always the same."""

    def make() -> Any:
        x, y = tiny.arrays()
        x[:, 0] = value
        return tf.data.Dataset.from_tensor_slices(({"x": x}, y)).repeat().batch(tiny.BATCH, drop_remainder=True)

    return make


@pytest.mark.usefixtures("streaming")
@pytest.mark.parametrize("level", [0.0, 0.5])
def test_a_zero_weight_that_is_not_masked_is_trained_after_a_restart(level: float, tmp_path: Path) -> None:
    for steps, value in ((5, 0.0), (8, 1.0)):
        sparsifier = SPARSIFIER_MAP["constant"](n_iter=100, sparsity_level=level)
        estimator = zero_estimator(tmp_path)
        estimator.train(first_column(value), max_steps=steps, sparsifier=sparsifier)
        if steps == 5:
            assert not estimator.get_variable_value("kernel")[0].any()
    kernel = estimator.get_variable_value("kernel")
    assert (kernel == 0).sum() == level * 256
    assert kernel[0].any()


@pytest.mark.usefixtures("streaming")
def test_masks_of_a_custom_sparsifier_survive_a_restart(tmp_path: Path) -> None:
    class Once:
        def apply_sparsity(self, step: int) -> bool:
            return step == 1

        def get_masked_weights(self, step: int, weights: Mapping[str, Any], sparse_val: float) -> dict[str, Any]:
            weights["embedding"][:3] = sparse_val
            weights["scale"][3:6] = sparse_val  # others, as two factors of zero would have no gradient
            return dict(weights)

        def get_num_sparsified_values(self, v_name: str, sparse_val: float) -> int:
            return 3

    for steps in (3, 6):
        estimator = zero_estimator(tmp_path)
        estimator.train(first_column(1.0), max_steps=steps, sparsifier=Once())
    for name, taken in (("embedding", slice(3)), ("scale", slice(3, 6))):
        value = estimator.get_variable_value(name)
        assert not value[taken].any()
        assert np.delete(value, taken, 0).all()


@pytest.mark.usefixtures("streaming")
def test_set_exchanges_weights_and_keeps_their_count(tmp_path: Path) -> None:
    estimator = tiny.estimator(tmp_path, save_checkpoints_steps=1, keep_checkpoint_max=0)
    sparsifier = SPARSIFIER_MAP["set"](n_iter=2, zeta=0.25)
    estimator.train(tiny.input_fn(), max_steps=5, sparsifier=sparsifier)
    early, late = (np.asarray(estimator_value(tmp_path / f"model-ckpt-{step}", "w")) == 0 for step in (1, 5))
    assert early.sum() == 128
    assert sparsifier.get_num_sparsified_values("w") == 128
    assert late.sum() >= 128  # a weight that has grown anew is zero until a gradient comes
    assert (early & ~late).any()
    assert (late & ~early).any()


@pytest.mark.parametrize("last_step", [None, 6])
def test_a_schedule_that_reaches_1_is_refused_at_the_start_or_at_its_update(
    last_step: int | None, tmp_path: Path
) -> None:
    schedule = {"type": "linear", "init": 0.5, "slope": 0.25}
    estimator = tiny.estimator(tmp_path, save_checkpoints_steps=1)
    gmp = {"algorithm": "gmp", "sparsity": schedule, "update": {"freq": 1, "stop": 4}}
    refused_at = 2 if last_step is None else 3
    with pytest.raises(SettingsError, match=f"reaches 1 by step {refused_at}, so all of w would be zero"):
        estimator.train(tiny.input_fn(epochs=1), max_steps=last_step, sparsifier=gmp)
    assert bool(estimator.latest_checkpoint()) == (last_step is None)


def estimator_value(path: Path, name: str) -> np.ndarray:
    from cerebras_tensorflow.saver.checkpoint_reader import CheckpointReader

    checkpoint = next(str(p) for p in path.parent.glob(f"{path.name}*")).partition(".index")[0].partition(".data")[0]
    return CheckpointReader(checkpoint).get_tensor(name)


@pytest.mark.usefixtures("streaming")
def test_a_custom_sparsifier_is_called_by_its_protocol(tmp_path: Path) -> None:
    asked: list[int] = []

    class FirstRow:
        def apply_sparsity(self, step: int) -> bool:
            asked.append(step)
            return step == 1

        def get_masked_weights(self, step: int, weights: Mapping[str, Any], sparse_val: float) -> dict[str, Any]:
            assert set(weights) == {"w", "out"}
            masked = dict(weights)
            masked["w"][0] = sparse_val
            return masked

        def get_num_sparsified_values(self, v_name: str, sparse_val: float) -> int:
            return 64

    estimator = tiny.estimator(tmp_path)
    estimator.train(tiny.input_fn(), max_steps=3, sparsifier=FirstRow())
    assert asked == [0, 1, 2, 3]
    w = estimator.get_variable_value("w")
    assert not w[0].any()
    assert w[1:].all()


@pytest.mark.usefixtures("streaming")
def test_a_sparsifier_that_returns_another_shape_is_refused(tmp_path: Path) -> None:
    class Wrong:
        def apply_sparsity(self, step: int) -> bool:
            return True

        def get_masked_weights(self, step: int, weights: Mapping[str, Any], sparse_val: float) -> dict[str, Any]:
            return {"w": weights["w"][:1]}

    with pytest.raises(CerebrasError, match=r"returned w in the shape \(1, 64\); it is \(4, 64\)"):
        tiny.estimator(tmp_path).train(tiny.input_fn(), max_steps=1, sparsifier=Wrong())


@pytest.mark.usefixtures("streaming")
def test_a_run_that_dies_before_its_first_masks_makes_them_when_it_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying, pytest.raises(KeyboardInterrupt):
        dying.setattr(SparsityHook, "after_create_session", die)
        tiny.estimator(tmp_path).train(tiny.input_fn(), max_steps=2, sparsifier=0.75)
    assert (tmp_path / "model-ckpt-0.index").exists()
    estimator = tiny.estimator(tmp_path)
    estimator.train(tiny.input_fn(), max_steps=2, sparsifier=0.75)
    assert {name: int(zero.sum()) for name, zero in zeros(estimator).items()} == {"w": 192, "out": 48}


def test_a_warm_start_without_a_weight_makes_the_mask_of_this_weight(tmp_path: Path) -> None:
    tiny.estimator(tmp_path / "first").train(tiny.input_fn(), max_steps=1, sparsifier=0.75)
    estimator = tiny.estimator(
        tmp_path / "second", warm_start_from=WarmStartSettings(str(tmp_path / "first"), vars_to_warm_start="out")
    )
    estimator.train(tiny.input_fn(), max_steps=1, sparsifier=0.75)
    assert {name: int(zero.sum()) for name, zero in zeros(estimator).items()} == {"w": 192, "out": 48}


def test_zeros_of_a_checkpoint_are_masked_only_if_there_are_as_many_as_the_target() -> None:
    def of(num_zeros: int, size: int, target: float) -> bool:
        return zeros_as_mask(np.arange(size) >= num_zeros, target) is not None

    assert not of(16, 16, 0.95)  # a zero-initialised layer
    assert not of(0, 16, 0.05)
    assert not of(980, 1000, 0.95)
    assert of(15, 16, 0.9)
    assert of(953, 1000, 0.95)
    np.testing.assert_array_equal(zeros_as_mask(np.array([0.0, 2.0]), 0.5), [False, True])


def test_a_sparsifier_that_takes_no_weight_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"takes no weight of the model.* The weights are bias"):
        CallerSparsifier(SPARSIFIER_MAP["topk"](n_iter=1)).choose({"bias": (4,)})


def test_a_sparsifier_works_in_pipelined_mode_too(tmp_path: Path) -> None:
    estimator = tiny.estimator(tmp_path)
    sparsifier = get_AdamW_aware_sparsifier_class(SPARSIFIER_MAP["topk"])(n_iter=1)
    estimator.train(tiny.input_fn(), max_steps=2, sparsifier=sparsifier)
    assert {name: int(zero.sum()) for name, zero in zeros(estimator).items()} == {"w": 128, "out": 32}


WEIGHTS = {
    "a/kernel": np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32),
    "b/kernel": np.random.default_rng(1).normal(size=(8, 4)).astype(np.float32),
    "a/bias": np.ones(64, np.float32),
    "input_embedding/embedding_weights": np.ones((4, 4), np.float32),
    "layer_norm/same/kernel": np.ones((4, 4), np.float32),
}


@pytest.mark.parametrize("value", [0.0, np.nan])
def test_only_kernels_become_sparse(value: float) -> None:
    sparsifier = SPARSIFIER_MAP["topk"](n_iter=1, sparsity_level=0.75)
    masked = sparsifier.get_masked_weights(0, WEIGHTS, value)
    taken = np.isnan(masked["a/kernel"]) if np.isnan(value) else masked["a/kernel"] == 0
    assert taken.sum() == sparsifier.get_num_sparsified_values("a/kernel", value) == 3072
    assert np.abs(WEIGHTS["a/kernel"][taken]).max() <= np.abs(WEIGHTS["a/kernel"][~taken]).min()
    for name in ("a/bias", "input_embedding/embedding_weights", "layer_norm/same/kernel"):
        assert sparsifier.get_num_sparsified_values(name) == 0
        np.testing.assert_array_equal(masked[name], WEIGHTS[name])


def test_integer_weights_take_whole_numbers_only() -> None:
    sparsifier = SPARSIFIER_MAP["topk"](n_iter=1)
    weights = {"a/kernel": np.arange(4, dtype=np.int32).reshape(2, 2)}
    with pytest.raises(SettingsError, match=r"a/kernel: its weights are int32, .* is nan; give .* sparse_val=0"):
        sparsifier.get_masked_weights(0, weights)
    assert sparsifier.get_masked_weights(0, weights, 0)["a/kernel"].tolist() == [[0, 0], [2, 3]]


@pytest.mark.parametrize("kind", ["topk", "balanced-topk", "set"])
def test_a_removed_weight_is_nan_and_counts_as_zero_at_the_next_choice(kind: str) -> None:
    """As in releases 1.7 and 1.8, where the weights themselves hold NaN."""
    sparsifier = SPARSIFIER_MAP[kind](n_iter=1, sparsity_level=0.3)
    first = sparsifier.get_masked_weights(0, WEIGHTS)
    second = sparsifier.get_masked_weights(1, first)
    for name in ("a/kernel", "b/kernel"):
        before, after = np.isnan(first[name]), np.isnan(second[name])
        assert before.sum() == after.sum() == sparsifier.get_num_sparsified_values(name)
        assert (before == after).all() == (kind != "set")
        assert not second[name][before & ~after].any()


@pytest.mark.parametrize("level", [0.1, 0.2, 0.3, 0.9])
def test_balanced_topk_removes_as_many_of_each_column_then_the_smallest(level: float) -> None:
    weight = np.random.default_rng(0).normal(size=(10, 4)).astype(np.float32)
    sparsifier = SPARSIFIER_MAP["balanced-topk"](n_iter=1, sparsity_level=level)
    removed = np.isnan(sparsifier.get_masked_weights(0, {"a/kernel": weight})["a/kernel"]).sum(axis=0)
    assert removed.min() >= int(level * 10)
    assert removed.sum() == 40 - int((1 - level) * 40)


@pytest.mark.parametrize("distribution", ["er", "erk"])
def test_er_distributions_keep_more_of_small_variables(distribution: str) -> None:
    sparsifier = SPARSIFIER_MAP["topk"](n_iter=1, sparsity_level=0.9, sparsity_distribution=distribution)
    sparsifier.get_masked_weights(0, WEIGHTS)
    taken = {name: sparsifier.get_num_sparsified_values(name) for name in ("a/kernel", "b/kernel")}
    assert taken["b/kernel"] / 32 < taken["a/kernel"] / 4096
    assert abs(sum(taken.values()) / 4128 - 0.9) < 0.001


def test_a_mask_file_sets_the_masks(tmp_path: Path) -> None:
    mask = np.eye(64)
    np.savez(tmp_path / "masks.npz", **{"a/kernel": mask})
    sparsifier = SPARSIFIER_MAP["file"](n_iter=1, mask_file=str(tmp_path / "masks.npz"))
    masked = sparsifier.get_masked_weights(0, WEIGHTS, 0)
    np.testing.assert_array_equal(masked["a/kernel"], WEIGHTS["a/kernel"] * mask)
    np.testing.assert_array_equal(masked["b/kernel"], WEIGHTS["b/kernel"])


@pytest.mark.parametrize(
    "kind, settings",
    [
        ("topk", {"n_iter": 0}),
        ("topk", {"n_iter": 1, "sparsity_level": 1.0}),
        ("topk", {"n_iter": 1, "sparsity_distribution": "other"}),
        ("checkerboard", {"n_iter": 1, "sparsity_level": 0.25}),
        ("file", {"n_iter": 1}),
        ("rigl", {"n_iter": 1, "sparsity_level": 1.0}),
    ],
)
def test_settings_out_of_range_are_refused(kind: str, settings: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=r"n_iter|sparsity|mask_file"):
        SPARSIFIER_MAP[kind](**settings)
