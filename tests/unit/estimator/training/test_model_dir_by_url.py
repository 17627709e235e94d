"""Runs whose model_dir is in object storage: a real S3 server (moto's) on loopback."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cerebras_tensorflow.config.work_folder import work_folder
from cerebras_tensorflow.errors import CheckpointError, SettingsError
from cerebras_tensorflow.estimator.evaluation.evaluator import Evaluator
from cerebras_tensorflow.estimator.export.exporters import BestExporter
from cerebras_tensorflow.estimator.export.saved_model import build_raw_serving_input_receiver_fn
from cerebras_tensorflow.estimator.train_and_evaluate import EvalSpec, TrainSpec, train_and_evaluate
from cerebras_tensorflow.locations import object_location
from cerebras_tensorflow.saver.checkpoint_reader import CheckpointReader, open_checkpoint
from cerebras_tensorflow.saver.objects.store import Bucket
from tests.unit.conftest import S3_SECRET
from tests.unit.estimator import tiny
from tests.unit.faulty_proxy import FaultyProxy

URL = "s3://bucket/runs/first"


def keys(url: str = URL) -> list[str]:
    location = object_location(url)
    assert location is not None
    return sorted(item.key.removeprefix(location.key + "/") for item in Bucket(location).list(location.key))


def values(path: str) -> dict[str, Any]:
    with open_checkpoint(path) as reader:
        return {name: reader.read(name).tolist() for name in reader.names()}


def receiver_fn() -> Any:
    return build_raw_serving_input_receiver_fn({"x": np.zeros((2, 4), np.float32)})()


def test_a_run_in_a_bucket_saves_resumes_evaluates_and_exports_as_in_a_folder(
    mode: str, proxy: FaultyProxy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"save_checkpoints_steps": 2, "keep_checkpoint_max": 2, "save_summary_steps": 1}
    local = tiny.estimator(tmp_path / "local", **settings).train(tiny.input_fn(), max_steps=5)
    local.train(tiny.input_fn(), max_steps=8)
    run = tiny.estimator(URL, **settings).train(tiny.input_fn(), max_steps=5)
    assert run.model_dir == run.config.model_dir == URL
    newest = run.latest_checkpoint()
    assert newest is not None and newest.startswith(f"{URL}/model") and CheckpointReader.is_a_checkpoint(newest)
    assert [path[-2:] for path in CheckpointReader.all_checkpoints(URL)] == ["-4", "-5"]
    # Another process, on another machine: nothing but the bucket.
    resumed = tiny.estimator(URL, **settings).train(tiny.input_fn(), max_steps=8)
    assert values(URL) == values(str(tmp_path / "local"))
    assert resumed.evaluate(tiny.input_fn(epochs=1)) == local.evaluate(tiny.input_fn(epochs=1))
    assert resumed.evaluate(tiny.input_fn(epochs=1), checkpoint_path=CheckpointReader.all_checkpoints(URL)[0])
    assert len(list(resumed.predict(tiny.input_fn(epochs=1)))) == tiny.SAMPLES
    assert resumed.get_variable_value("w").shape == (4, 64)
    warm = tiny.estimator(tmp_path / "warm", warm_start_from=URL)
    assert warm.evaluate(tiny.input_fn(epochs=1))["loss"] == local.evaluate(tiny.input_fn(epochs=1))["loss"]
    exported = os.fsdecode(resumed.export_saved_model(f"{URL}/export", receiver_fn))
    assert exported.startswith(f"{URL}/export/") and "saved_model.pb" in keys(exported)
    found = keys()
    assert "checkpoint" in found and "performance/performance.json" in found
    assert any(name.startswith("events.") for name in found) and any(name.startswith("eval/events.") for name in found)
    assert sum(name.endswith("manifest.json") for name in found) == 2
    assert not any("tfcs_" in name or "weight_store" in name for name in found)
    assert not Path("s3:").exists() and "are uploaded after each" in caplog.text and S3_SECRET not in caplog.text
