"""Warm starts of CerebrasEstimator: a path alone is lenient; both modes; HDF5 and SavedModels too."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.estimator.export.saved_model import build_raw_serving_input_receiver_fn
from cerebras_tensorflow.saver.cli import tensorflow_to_h5
from tests.unit.estimator import tiny
from tests.unit.faulty_proxy import FaultyProxy

v1 = tf.compat.v1


def value(estimator: Any, name: str) -> np.ndarray:
    return estimator.get_variable_value(name)


@pytest.fixture
def source(tmp_path: Path) -> Any:
    return tiny.estimator(tmp_path / "source").train(tiny.input_fn(), steps=2)


def with_head(mode: str, y: Any, labels: Any) -> dict[str, Any]:
    """Change the model: one variable more, of which no checkpoint knows."""
    v1.get_variable("head", [64, 8], initializer=v1.ones_initializer())
    return {}


def frozen(mode: str, y: Any, labels: Any) -> dict[str, Any]:
    """Change the model: training changes nothing but the step."""
    return {"train_op": v1.train.get_global_step().assign_add(1)} if mode == "train" else {}


@pytest.mark.parametrize("as_path", [str, Path, os.fsencode])
def test_a_path_loads_what_matches(mode: str, tmp_path: Path, source: Any, as_path: Any) -> None:
    def change(mode: str, y: Any, labels: Any) -> dict[str, Any]:
        return with_head(mode, y, labels) | frozen(mode, y, labels)

    path = as_path(source.latest_checkpoint())
    estimator = tiny.estimator(tmp_path / "it", {"spec": change}, warm_start_from=path)
    estimator.train(tiny.input_fn(), steps=1)
    np.testing.assert_array_equal(value(estimator, "w"), value(source, "w"))
    assert (value(estimator, "head") == 1).all()
    assert value(estimator, "global_step") == 1


def test_variables_that_are_not_warm_started_are_logged(
    tmp_path: Path, source: Any, caplog: pytest.LogCaptureFixture
) -> None:
    v1.logging.set_verbosity(v1.logging.INFO)
    tf.get_logger().propagate = True
    path = source.latest_checkpoint()
    tiny.estimator(tmp_path / "it", {"spec": with_head}, warm_start_from=path).train(tiny.input_fn(), steps=1)
    assert f"Not warm-started: Tensor head is not found in {path} checkpoint" in caplog.text


def test_optimizer_state_starts_anew(tmp_path: Path, source: Any) -> None:
    params = {"spec": frozen}
    estimator = tiny.estimator(tmp_path / "it", params, warm_start_from=source.latest_checkpoint())
    estimator.train(tiny.input_fn(), steps=1)
    assert value(source, "w/Adam").any()
    assert not value(estimator, "w/Adam").any()


def test_a_checkpoint_of_another_model_is_refused(mode: str, tmp_path: Path) -> None:
    def other(features: Any, labels: Any, mode: str) -> Any:
        v1.get_variable("unknown", [3])
        train_op = v1.train.get_global_step().assign_add(1)
        return tf.estimator.EstimatorSpec(mode, loss=tf.constant(0.0), train_op=train_op)

    first = tf.estimator.Estimator(other, str(tmp_path / "other")).train(tiny.input_fn(), steps=1)
    estimator = tiny.estimator(tmp_path / "it", warm_start_from=first.latest_checkpoint())
    with pytest.raises(CheckpointError, match="shares no variable with the model"):
        estimator.train(tiny.input_fn(), steps=1)


def test_a_warm_start_accepts_hdf5_and_saved_models(mode: str, tmp_path: Path, source: Any) -> None:
    h5 = tmp_path / "weights.h5"
    assert tensorflow_to_h5([source.latest_checkpoint(), str(h5)]) == 0
    receiver = build_raw_serving_input_receiver_fn({"x": tf.zeros([1, 4])})
    saved_model = source.export_saved_model(str(tmp_path / "export"), receiver).decode()
    for number, path in enumerate((str(h5), saved_model)):
        estimator = tiny.estimator(tmp_path / str(number), {"spec": frozen}, warm_start_from=path)
        estimator.train(tiny.input_fn(), steps=1)
        np.testing.assert_array_equal(value(estimator, "out"), value(source, "out"))


def test_a_warm_start_and_an_evaluation_take_a_checkpoint_by_url(
    proxy: FaultyProxy, tmp_path: Path, source: Any
) -> None:
    path, url = source.latest_checkpoint(), "s3://bucket/run/c"
    assert tensorflow_to_h5([path, url, "--quiet"]) == 0
    started = tiny.estimator(tmp_path / "it", {"spec": frozen}, warm_start_from=url)
    started.train(tiny.input_fn(), steps=1)
    for name in ("w", "out"):
        np.testing.assert_array_equal(value(started, name), value(source, name))
    local = source.evaluate(tiny.input_fn(), steps=2, checkpoint_path=path)
    assert source.evaluate(tiny.input_fn(), steps=2, checkpoint_path=url) == local
