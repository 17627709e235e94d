"""Graph files beside the checkpoints: TensorFlow can import them, and they are removed with their checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format

from cerebras_tensorflow import RunConfig
from cerebras_tensorflow.estimator.tf_estimator import Estimator
from cerebras_tensorflow.estimator.training.graph_files import GraphFiles
from tests.unit.estimator.tiny import BATCH, arrays, estimator, input_fn, model_fn, v1


def endings(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*") if path.suffix in (".meta", ".index", ".pbtxt", ".h5"))


def test_a_graph_can_be_imported_and_trained_on(tmp_path: Path) -> None:
    run = Estimator(model_fn, str(tmp_path)).train(input_fn(), max_steps=3)
    path = run.latest_checkpoint()
    x, y = arrays()
    with tf.Graph().as_default() as graph, v1.Session() as session:
        saver = v1.train.import_meta_graph(f"{path}.meta")
        saver.restore(session, path)
        step = session.run("global_step/Read/ReadVariableOp:0")
        feeds = {"cs_input/0:0": x[:BATCH], "cs_input/1:0": y[:BATCH]}
        before = session.run("w/Read/ReadVariableOp:0")
        session.run(graph.get_collection("train_op")[0], feeds)
        after = session.run("w/Read/ReadVariableOp:0")
    assert step == 3
    assert np.array_equal(before, run.get_variable_value("w"))
    assert not np.array_equal(before, after)


def test_graph_pbtxt_equals_the_graph_of_the_meta_file(tmp_path: Path) -> None:
    Estimator(model_fn, str(tmp_path)).train(input_fn(), max_steps=1)
    read = text_format.Parse((tmp_path / "graph.pbtxt").read_text(encoding="utf-8"), v1.GraphDef())
    meta = v1.MetaGraphDef.FromString((tmp_path / "model.ckpt-1.meta").read_bytes())
    assert any(node.attr["_output_shapes"].list.shape for node in read.node)
    assert read == meta.graph_def


def test_a_meta_file_is_removed_with_its_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "model.ckpt-9.meta").write_bytes(b"of a run that died")
    run = Estimator(model_fn, str(tmp_path), RunConfig(save_checkpoints_steps=1, keep_checkpoint_max=1))
    run.train(input_fn(), max_steps=3)
    assert endings(tmp_path) == ["graph.pbtxt", "model.ckpt-3.index", "model.ckpt-3.meta"]


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({"checkpoint_save_graph_def": False}, ["model.ckpt-0.index", "model.ckpt-1.index"]),
        ({"checkpoint_format": "h5"}, ["graph.pbtxt", "model.ckpt-0.h5", "model.ckpt-1.h5"]),
    ],
)
def test_settings_disable_graph_files(tmp_path: Path, settings: dict[str, Any], expected: list[str]) -> None:
    Estimator(model_fn, str(tmp_path), RunConfig(**settings)).train(input_fn(), max_steps=1)
    assert endings(tmp_path) == expected


def test_weight_streaming_writes_no_graph_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CEREBRAS_EXECUTION_MODE", "weight_streaming")
    estimator(tmp_path).train(input_fn(), max_steps=1)
    assert endings(tmp_path) == ["model-ckpt-0.index", "model-ckpt-1.index"]


def test_the_event_file_has_the_graph_and_the_saves(tmp_path: Path) -> None:
    config = RunConfig(save_summary_steps=None, log_step_count_steps=None)
    Estimator(model_fn, str(tmp_path), config).train(input_fn(), max_steps=1)
    v1.summary.FileWriterCache.clear()
    (file,) = tmp_path.glob("events*")
    records = tf.data.TFRecordDataset(str(file)).as_numpy_iterator()
    events = [v1.Event.FromString(record) for record in records]
    kinds = [event.WhichOneof("what") for event in events]
    assert {"graph_def", "meta_graph_def"} <= set(kinds)
    saves = [event.session_log.checkpoint_path for event in events if event.WhichOneof("what") == "session_log"]
    assert saves == [f"{tmp_path}/model.ckpt-{step}" for step in (0, 1)]


def test_a_graph_above_2_gb_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def too_large(**settings: Any) -> Any:
        raise ValueError("GraphDef cannot be larger than 2GB.")

    monkeypatch.setattr(v1.train, "export_meta_graph", too_large)
    files = GraphFiles(tf.Graph(), str(tmp_path), None)
    files.write_beside(str(tmp_path / "model.ckpt-1"))
    files.write_beside(str(tmp_path / "model.ckpt-2"))
    assert endings(tmp_path) == []
    assert caplog.text.count("GraphDef cannot be larger than 2GB.") == 1
