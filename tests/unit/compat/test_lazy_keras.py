"""Keras 3 is loaded on first use, and all import paths give the same module."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import cerebras_tensorflow

ROOT = Path(cerebras_tensorflow.__file__).parents[1]
SCRIPT = """
import json, sys
import cerebras_tensorflow
import tensorflow as tf
early = "keras" in sys.modules
by_attribute = tf.keras.layers.Dense
from tensorflow.keras.layers import Dense as by_module
import keras
print(json.dumps([early, by_attribute is keras.layers.Dense, by_module is keras.layers.Dense]))
"""
KERAS_FIRST = """
import json
import cerebras_tensorflow
import keras
import tensorflow as tf
print(json.dumps([tf.keras.layers.Dense is keras.layers.Dense, tf.estimator.Estimator.__module__]))
"""


def output(script: str) -> list[object]:
    environ = {name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        env={**environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=True,
    )
    return list(json.loads(done.stdout.splitlines()[-1]))


def test_keras_is_loaded_on_first_use() -> None:
    assert output(SCRIPT) == [False, True, True]


def test_keras_may_be_imported_first() -> None:
    assert output(KERAS_FIRST) == [True, "cerebras_tensorflow.estimator.tf_estimator"]
