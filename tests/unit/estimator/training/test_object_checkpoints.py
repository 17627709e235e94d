"""Checkpoints of tf.train.Checkpoint: written through a Scaffold, and read by a warm start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.estimator.training.warm_start import WarmStartSettings
from tests.unit.estimator import tiny

v1 = tf.compat.v1
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"


def as_objects(mode: str, y: Any, labels: Any) -> dict[str, Any]:
    named = {variable.op.name.replace("/", "_"): variable for variable in v1.global_variables()}
    return {"scaffold": v1.train.Scaffold(saver=tf.train.Checkpoint(**named))}


def test_they_hold_the_graph_of_objects_and_start_another_model(mode: str, tmp_path: Path) -> None:
    run = tiny.estimator(tmp_path / "first", {"spec": as_objects}).train(tiny.input_fn(), steps=2)
    names = run.get_variable_names()
    assert OBJECT_GRAPH in names and "w/.ATTRIBUTES/VARIABLE_VALUE" in names
    path = run.latest_checkpoint()
    loaded = tf.Variable(tf.zeros([64, 1]))
    tf.train.Checkpoint(out=loaded).read(path).expect_partial()
    np.testing.assert_array_equal(loaded, run.get_variable_value("out/.ATTRIBUTES/VARIABLE_VALUE"))
    warm = tiny.estimator(tmp_path / "second", warm_start_from=WarmStartSettings(path))
    expected = run.evaluate(tiny.input_fn(epochs=1))["loss"]
    assert warm.evaluate(tiny.input_fn(epochs=1))["loss"] == expected
