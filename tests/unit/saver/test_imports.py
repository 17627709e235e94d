"""Importing the saver loads neither h5py nor TensorFlow."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "module", ["hdf5", "hdf5.reader", "checkpoint_reader", "checkpoint_writer", "model_dir.retention", "integrity"]
)
def test_importing_the_saver_does_not_load_h5py(module: str) -> None:
    names = "[m for m in ('h5py', 'tensorflow') if m in sys.modules]"
    code = f"import sys, cerebras_tensorflow.saver.{module}; print({names})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
