"""Warnings about variables that cannot be streamed name the line of the model that causes it."""

from __future__ import annotations

import logging
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf
import tf_keras

from cerebras_tensorflow import CerebrasEstimator, CSConfig, CSEstimatorSpec, CSRunConfig
from cerebras_tensorflow.estimator.model.source_lines import source_line, with_source_line
from cerebras_tensorflow.graph.program import Note
from tests.unit.estimator.tiny import input_fn, v1

HERE = Path(__file__)


def place_in(text: str) -> tuple[str, str]:
    """The file that a message names, and the text of the named line."""
    match = re.search(r"\(made at (.+):(\d+)\)", text)
    assert match, text
    path = Path(match[1])
    return path.name, path.read_text().splitlines()[int(match[2]) - 1].strip()


def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
    w = v1.get_variable("w", [4, 4])
    out = v1.get_variable("out", [4, 1])

    def body(number: Any, x: Any) -> Any:
        return number + 1, tf.matmul(x, w)  # the line to blame

    _, x = v1.while_loop(lambda number, _: number < 2, body, [0, features["x"]])
    loss = tf.reduce_mean(tf.square(tf.matmul(x, out) - labels))
    train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss, v1.train.get_global_step())
    return CSEstimatorSpec(mode, loss=loss, train_op=train_op)


def test_a_variable_that_cannot_be_streamed_gets_a_warning_with_op_reason_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CEREBRAS_EXECUTION_MODE", "weight_streaming")
    config = CSRunConfig(cs_config=CSConfig(min_stream_bytes=1), save_summary_steps=None, log_step_count_steps=None)
    for steps in (1, 2):  # the second run loads the Program from the cache and must warn too
        caplog.clear()
        CerebrasEstimator(model_fn, str(tmp_path), config=config, params={}).train(input_fn(), max_steps=steps)
        (record,) = [r for r in caplog.records if r.getMessage().startswith("w stays in memory (64 B): ")]
        assert record.levelno == logging.WARNING
        assert "op while/MatMul/ReadVariableOp/Enter (Enter) takes it as a whole (made at " in record.getMessage()
        file, line = place_in(record.getMessage())
        assert (file, line) == (HERE.name, "return number + 1, tf.matmul(x, w)  # the line to blame")
    assert "out stays in memory" not in caplog.text


def test_source_lines_skip_tensorflow_keras_and_this_package() -> None:
    with tf.Graph().as_default():
        text = source_line(tf_keras.layers.Dense(4)(tf.ones([2, 3])).op)
    assert text is not None
    path, _, line = text.rpartition(":")
    assert Path(path).resolve() == HERE.resolve()
    assert "tf_keras.layers.Dense" in HERE.read_text().splitlines()[int(line) - 1]


def test_a_file_below_the_working_folder_is_named_by_its_relative_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.py").write_text("import tensorflow as tf\n\ndef build():\n    return tf.constant(1).op\n")
    names: dict[str, Any] = {}
    exec(compile((tmp_path / "model.py").read_text(), str(tmp_path / "model.py"), "exec"), names)
    with tf.Graph().as_default():
        operation = names["build"]()
    assert source_line(operation) == f"{tmp_path}{os.sep}model.py:4"
    monkeypatch.chdir(tmp_path)
    assert source_line(operation) == "model.py:4"


def test_a_note_without_an_op_gets_the_line_of_its_variable_if_known() -> None:
    with tf.Graph().as_default() as graph:
        v1.get_variable("w", [4], use_resource=True)
    note = Note("w", 16, "its uses and its update need each other")
    assert with_source_line(note, graph).startswith(f"{note.text} (made at ")
    assert "get_variable" in place_in(with_source_line(note, graph))[1]
    note = replace(note, variable="v")
    assert with_source_line(note, graph) == note.text
