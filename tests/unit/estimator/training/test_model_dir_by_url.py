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
from cerebras_tensorflow.estimator.export.exporters import BestExporter
from cerebras_tensorflow.estimator.export.saved_model import build_raw_serving_input_receiver_fn
from cerebras_tensorflow.estimator.train_and_evaluate import EvalSpec, TrainSpec, train_and_evaluate
from cerebras_tensorflow.estimator.training.early_stopping import read_eval_metrics
from cerebras_tensorflow.locations import object_location
from cerebras_tensorflow.saver import integrity, tf_h5_saver
from cerebras_tensorflow.saver.checkpoint_reader import CheckpointReader, open_checkpoint
from cerebras_tensorflow.saver.model_dir import uploads
from cerebras_tensorflow.saver.objects import store as store_module
from cerebras_tensorflow.saver.objects.store import Bucket
from tests.unit.conftest import S3_SECRET
from tests.unit.estimator import tiny
from tests.unit.faulty_proxy import FaultyProxy

v1 = tf.compat.v1
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
    secret = Path(work_folder(URL), "csx", "secret")
    secret.parent.mkdir(parents=True)
    run = tiny.estimator(URL, **settings)
    uploads.begin(URL)
    secret.write_text("of the processes of a launch")
    run.train(tiny.input_fn(), max_steps=5)
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
    assert (
        tf.train.latest_checkpoint(URL) == v1.train.latest_checkpoint(checkpoint_dir=URL) == resumed.latest_checkpoint()
    )
    assert v1.train.checkpoint_exists(f"{newest[:-1]}8") and not v1.train.checkpoint_exists(f"{URL}/model.ckpt-99")
    assert ("w", [4, 64]) in tf.train.list_variables(URL) and tf.train.load_checkpoint(URL).has_tensor("out")
    np.testing.assert_array_equal(tf.train.load_variable(URL, "w"), resumed.get_variable_value("w"))
    warm = tiny.estimator(tmp_path / "warm", warm_start_from=URL)
    assert warm.evaluate(tiny.input_fn(epochs=1))["loss"] == local.evaluate(tiny.input_fn(epochs=1))["loss"]
    assets = {"of/a/bucket.json": f"{URL}/performance/performance.json", "of/a/folder.py": __file__}
    exported = os.fsdecode(resumed.export_saved_model(f"{URL}/export", receiver_fn, assets))
    assert exported.startswith(f"{URL}/export/") and "saved_model.pb" in keys(exported)
    assert {f"assets.extra/{place}" for place in assets} <= {*keys(exported)}
    found = keys()
    assert "checkpoint" in found and "performance/performance.json" in found
    assert any(name.startswith("events.") for name in found) and any(name.startswith("eval/events.") for name in found)
    assert sum(name.endswith("manifest.json") for name in found) == 2
    assert not any(part in name for name in found for part in ("tfcs_", "weight_store", "secret"))
    assert not Path("s3:").exists() and "are uploaded after each" in caplog.text and S3_SECRET not in caplog.text


def test_evaluation_beside_training_finds_its_best_result_and_exports_in_the_bucket(proxy: FaultyProxy) -> None:
    run = tiny.estimator(URL, save_checkpoints_steps=2)
    exporter = BestExporter("best", receiver_fn, exports_to_keep=1)
    train_and_evaluate(
        run,
        TrainSpec(tiny.input_fn(), max_steps=6),
        EvalSpec(tiny.input_fn(epochs=1), steps=None, exporters=exporter, start_delay_secs=0, throttle_secs=0),
    )
    exports = {name.split("/")[2] for name in keys() if name.startswith("export/best/")}
    assert len(exports) == 1
    metrics = read_eval_metrics(run.eval_dir())
    assert 6 in metrics


def test_a_damaged_or_unfinished_checkpoint_is_not_resumed_from(
    proxy: FaultyProxy, caplog: pytest.LogCaptureFixture
) -> None:
    run = tiny.estimator(URL, save_checkpoints_steps=2).train(tiny.input_fn(), max_steps=4)
    location = object_location(URL)
    assert location is not None
    bucket = Bucket(location)
    integrity._known.clear()  # as in another process
    data = next(name for name in keys(f"{URL}/model.ckpt-4") if name.startswith("data-"))
    bucket.put(f"runs/first/model.ckpt-4/{data}", b"x" * (bucket.size(f"runs/first/model.ckpt-4/{data}") or 0))
    bucket.put("runs/first/model.ckpt-9/data-1a-00000", b"of a writer that was killed")
    assert run.latest_checkpoint() == f"{URL}/model.ckpt-2" and "model.ckpt-4 is damaged" in caplog.text
    bucket.put("runs/first/checkpoint", b"\0 not a state")
    assert run.latest_checkpoint() == f"{URL}/model.ckpt-2"
    run.train(tiny.input_fn(), max_steps=3)
    assert CheckpointReader.all_checkpoints(URL)[-1] == run.latest_checkpoint() == f"{URL}/model.ckpt-3"


def test_of_two_runs_that_save_one_step_one_wins_and_the_other_stops(
    proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_if = Bucket.put_if

    def after_another_run(self: Bucket, key: str, content: bytes, replaced: Any) -> None:
        if key.endswith("model.ckpt-2/manifest.json"):
            monkeypatch.setattr(Bucket, "put_if", put_if)
            monkeypatch.setenv("XDG_CACHE_HOME", os.environ["HOME"] + "/another machine")
            tf_h5_saver.save(f"{URL}/model.ckpt-2", {"w": np.ones(3)})
        put_if(self, key, content, replaced)

    monkeypatch.setattr(Bucket, "put_if", after_another_run)
    with pytest.raises(CheckpointError, match="another process has written this checkpoint meanwhile"):
        tiny.estimator(URL, save_checkpoints_steps=2).train(tiny.input_fn(), max_steps=8)
    assert values(f"{URL}/model.ckpt-2") == {"w": [1, 1, 1]}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}, "check the endpoint .AWS_ENDPOINT_URL"),
        ({"url": "s3://other/run"}, "no such object or bucket"),
        ({"url": "hdfs://host/run"}, "hdfs:// cannot be read or written here"),
    ],
)
def test_a_model_dir_that_cannot_be_reached_is_refused_before_anything_runs(
    change: dict[str, str], expected: str, proxy: FaultyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "_RETRY_TIMEOUT_S", 1)
    monkeypatch.setattr(store_module, "_ATTEMPTS", 1)
    url = change.pop("url", URL)
    for name, value in change.items():
        monkeypatch.setenv(name, value)
    with pytest.raises((CheckpointError, SettingsError), match=expected):
        tiny.estimator(url, {"spec": lambda *_: pytest.fail("model_fn was called")}).train(tiny.input_fn(), max_steps=1)
    assert not (tmp_path / "hdfs:").exists()


@pytest.mark.parametrize("name", ["latest_checkpoint", "load_checkpoint", "list_variables", "checkpoint_exists"])
def test_tf_train_refuses_a_url_that_nobody_can_read(name: str) -> None:
    function = getattr(tf.compat.v1.train, name)
    with pytest.raises(SettingsError, match="ftp://host/run: ftp:// cannot be read or written here"):
        function("ftp://host/run")


def test_tf_train_still_takes_the_urls_that_tensorflow_reads(tmp_path: Path) -> None:
    assert tf.train.latest_checkpoint(f"file://{tmp_path}") is None
    assert tf.train.latest_checkpoint("ram://run") is None


def test_tf_train_reads_hdf5_checkpoints(tmp_path: Path) -> None:
    path = str(tmp_path / "model-ckpt-3.h5")
    tf_h5_saver.save(path, {"w": np.ones((2, 3), np.float32)})
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model-ckpt-3.h5"\n')
    assert tf.train.latest_checkpoint(str(tmp_path)) == path
    for place in (path, tmp_path):
        assert tf.train.list_variables(place) == [("w", [2, 3])]
        np.testing.assert_array_equal(tf.train.load_variable(place, "w"), np.ones((2, 3), np.float32))
        assert tf.train.load_checkpoint(place).get_variable_to_shape_map() == {"w": [2, 3]}
