"""Predictions, sample by sample or batch by batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tests.unit.estimator.tiny import BATCH, SAMPLES, arrays, estimator, input_fn


@pytest.fixture
def trained(mode: str, tmp_path: Path) -> Path:
    estimator(tmp_path).train(input_fn(), steps=1)
    return tmp_path


def test_each_sample_is_a_dict_in_the_order_of_the_input(trained: Path) -> None:
    run = estimator(trained)
    samples = list(run.predict(input_fn(epochs=1)))
    w, out = run.get_variable_value("w"), run.get_variable_value("out")
    expected = np.tanh(arrays()[0] @ w) @ out
    assert len(samples) == SAMPLES and set(samples[0]) == {"y", "double"}
    np.testing.assert_allclose([sample["y"] for sample in samples], expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(samples[5]["double"], 2 * samples[5]["y"])


def test_predict_keys_choose(trained: Path) -> None:
    (first, *_) = estimator(trained).predict(input_fn(epochs=1), predict_keys=["double"])
    assert set(first) == {"double"}
    with pytest.raises(
        ValueError, match=r"Expected to run at least one output from dict_keys\(\['y', 'double'\]\), provided \['z'\]"
    ):
        next(estimator(trained).predict(input_fn(), predict_keys=["z"]))


@pytest.mark.parametrize("num_samples", [1, BATCH, BATCH + 1])
def test_num_samples_limits_an_endless_input(num_samples: int, trained: Path) -> None:
    assert len(list(estimator(trained).predict(input_fn(), num_samples=num_samples))) == num_samples


def test_predictions_may_be_whole_batches(trained: Path) -> None:
    batches = list(estimator(trained).predict(input_fn(epochs=1), yield_single_examples=False))
    assert [batch["y"].shape for batch in batches] == [(BATCH, 1)] * (SAMPLES // BATCH)


def test_num_samples_limits_whole_batches_too(trained: Path) -> None:
    run = estimator(trained)
    batches = list(run.predict(input_fn(), yield_single_examples=False, num_samples=2 * BATCH))
    assert sum(len(batch["y"]) for batch in batches) == 2 * BATCH


def test_a_tensor_of_predictions_gives_arrays(trained: Path) -> None:
    run = estimator(trained, {"spec": lambda mode, y, labels: {"predictions": y}})
    samples = list(run.predict(input_fn(epochs=1)))
    assert len(samples) == SAMPLES and samples[0].shape == (1,)
    with pytest.raises(ValueError, match="not valid in case of non-dict predictions"):
        next(run.predict(input_fn(), predict_keys=["y"]))


def test_values_of_different_length_cannot_be_split(trained: Path) -> None:
    def spec(mode: str, y: Any, labels: Any) -> Any:
        return {"predictions": {"y": y, "total": tf.reduce_sum(y)}}

    run = estimator(trained, {"spec": spec})
    with pytest.raises(ValueError, match="Batch length of predictions should be same"):
        next(run.predict(input_fn()))
    (batch, *_) = run.predict(input_fn(epochs=1), yield_single_examples=False)
    assert batch["total"] == pytest.approx(batch["y"].sum(), rel=1e-4)


def test_sparse_predictions_come_as_whole_batches(trained: Path) -> None:
    run = estimator(trained, {"spec": lambda mode, y, labels: {"predictions": {"s": tf.sparse.from_dense(y)}}})
    (batch, *_) = run.predict(input_fn(epochs=1), yield_single_examples=False)
    assert batch["s"].dense_shape.tolist() == [BATCH, 1]


def test_features_without_labels_are_enough(trained: Path) -> None:
    def features_only() -> Any:
        return tf.data.Dataset.from_tensor_slices({"x": arrays()[0]}).batch(BATCH)

    one = list(estimator(trained).predict(features_only))
    two = list(estimator(trained).predict(input_fn(epochs=1)))
    np.testing.assert_array_equal([sample["y"] for sample in one], [sample["y"] for sample in two])


def test_leaving_the_generator_early_frees_the_system(trained: Path) -> None:
    run = estimator(trained)
    samples = run.predict(input_fn())
    next(samples)
    samples.close()
    assert len(list(run.predict(input_fn(epochs=1)))) == SAMPLES
