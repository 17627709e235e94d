"""`import cerebras_tensorflow` leaves a program the Keras that TensorFlow itself loads, but Keras 3 on first use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import cerebras_tensorflow

ROOT = Path(cerebras_tensorflow.__file__).parents[1]
REPORT = """
import gc, json, sys
by_tensorflow = sorted({"keras", "tf_keras"} & {*sys.modules})
from tf_keras.src.engine import data_adapter
is_pandas_loaded = "pandas" in sys.modules
import pandas
from tensorflow.keras.layers import Dense as by_module
from tensorflow import keras as by_name
import keras, tf_keras
one = tf.keras.layers.Dense
print(json.dumps([by_tensorflow, gc.get_freeze_count() > 100_000, by_module is one, by_name.layers.Dense is one, *(
    kind.layers.Dense is one for kind in (keras, tf_keras)
), is_pandas_loaded, data_adapter._is_pandas_series(pandas.Series([1])), data_adapter._is_pandas_series([1])]))
"""
PANDAS = (False, True, False)
"""Whether Keras 2 has loaded pandas, and what it says about a Series and a list. Keras 3 loads pandas."""


@pytest.mark.parametrize(
    "imports, chosen, expected",
    [
        ("import cerebras_tensorflow; import tensorflow as tf", {}, [[], True, True, True, True, False, *PANDAS]),
        (
            "import cerebras_tensorflow, keras, tensorflow as tf",
            {},
            [["keras"], True, True, True, True, False, True, *PANDAS[1:]],
        ),
        (
            "import cerebras_tensorflow; import tensorflow as tf",
            {"TF_USE_LEGACY_KERAS": "1"},
            [["tf_keras"], True, True, True, False, True, *PANDAS],
        ),
    ],
    ids=["Keras 3 loads on first use", "the script imports Keras 3 first", "the user chose Keras 2"],
)
def test_a_program_gets_the_keras_that_tensorflow_chooses(
    imports: str, chosen: dict[str, str], expected: list[object]
) -> None:
    environ = {name: value for name, value in os.environ.items() if name != "TF_USE_LEGACY_KERAS"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", imports + REPORT],
        env={**environ, "PYTHONPATH": str(ROOT), **chosen},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == expected


@pytest.mark.parametrize(
    "text, expected",
    [
        ("raise ImportError('broken')", "[False, False]"),  # Keras 2 does without pandas
        ("raise ValueError('another NumPy')", "ImportError: Keras 2 uses pandas, whose import fails: another NumPy"),
    ],
    ids=["ImportError", "another error"],
)
def test_a_pandas_that_cannot_be_imported_fails_as_in_keras_2_or_says_so(
    text: str, expected: str, tmp_path: Path
) -> None:
    (tmp_path / "pandas.py").write_text(text)
    script = (
        "import cerebras_tensorflow, tensorflow\nfrom tf_keras.src.engine import data_adapter\n"
        "print([data_adapter._is_pandas_series(value) for value in ([1], 'text')])"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        capture_output=True,
        text=True,
    )
    assert expected in done.stdout + done.stderr
