"""The event file of an evaluation, as tf.estimator writes it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cerebras_tensorflow.estimator.evaluation.summary import write_evaluation
from tests.unit.estimator.tiny import estimator, input_fn, v1


def written(folder: Path) -> dict[str, Any]:
    """Return tag -> value of the only event file."""
    (events,) = folder.glob("events.out.tfevents.*")
    return {value.tag: value for event in v1.train.summary_iterator(str(events)) for value in event.summary.value}


def test_numbers_arrays_and_serialized_summaries_are_written(tmp_path: Path) -> None:
    image = v1.Summary(value=[v1.Summary.Value(tag="any", simple_value=3.0)])
    results = {
        "loss": np.float32(1.5), "count": np.int64(7), "global_step": np.int64(2),
        "table": np.array([[1, 2], [3, 4]]), "picture": image.SerializeToString(),
    }  # fmt: skip
    write_evaluation(str(tmp_path), results, "/there/\udcff/model.ckpt-2")
    values = written(tmp_path)
    assert set(values) == {"loss", "count", "table", "picture/0", "checkpoint_path"}
    assert (values["loss"].simple_value, values["count"].simple_value, values["picture/0"].simple_value) == (
        1.5,
        7.0,
        3.0,
    )
    np.testing.assert_array_equal(tf.make_ndarray(values["table"].tensor), results["table"])
    assert tf.make_ndarray(values["checkpoint_path"].tensor).item() == b"/there/\xff/model.ckpt-2"
    assert values["checkpoint_path"].metadata.plugin_data.plugin_name == "text"


def test_other_values_are_skipped_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        write_evaluation(str(tmp_path), {"words": np.array(["a"]), "text": b"\xff", "global_step": 1}, None)
    assert written(tmp_path) == {}
    assert "Skipping summary for words" in caplog.text
    assert "Skipping summary for text" in caplog.text


def test_the_event_file_names_the_checkpoint(mode: str, tmp_path: Path) -> None:
    run = estimator(tmp_path).train(input_fn(), steps=1)
    run.evaluate(input_fn(), steps=1)
    path = tf.make_ndarray(written(tmp_path / "eval")["checkpoint_path"].tensor).item().decode()
    assert path == run.latest_checkpoint()
