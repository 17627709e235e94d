"""convert: verify removes a copy that differs from its source."""

from pathlib import Path

import numpy as np
import pytest

from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.saver import tf_h5_saver
from cerebras_tensorflow.saver.bundle.writer import BundleWriter
from cerebras_tensorflow.saver.convert import Selection, open_source, verify

VALUES = {"w": np.arange(6, dtype=np.float32), "b": np.array([np.nan, 1.0])}


@pytest.fixture
def source(tmp_path: Path) -> str:
    tf_h5_saver.save(str(tmp_path / "x.h5"), VALUES)
    return str(tmp_path / "x.h5")


def write(path: Path, **changed: np.ndarray) -> str:
    """Write a copy, with some values changed; return its path."""
    with BundleWriter(path) as writer:
        for name, value in {**VALUES, **changed}.items():
            writer.add(name, value)
    return str(path)


def test_verify_keeps_a_correct_copy(tmp_path: Path, source: str) -> None:
    target = write(tmp_path / "copy")
    with open_source(source) as reader:
        verify(reader, target, Selection())
    with open_source(target) as reader:
        np.testing.assert_array_equal(reader.read("b"), VALUES["b"])


def test_verify_removes_a_copy_that_differs(tmp_path: Path, source: str) -> None:
    target = write(tmp_path / "copy", w=np.arange(1, 7, dtype=np.float32))
    with open_source(source) as reader, pytest.raises(CheckpointError, match=r"tensor 'w' differs.*was removed"):
        verify(reader, target, Selection())
    assert [path.name for path in tmp_path.iterdir()] == ["x.h5"]


def test_verify_removes_a_damaged_copy(tmp_path: Path, source: str) -> None:
    target = write(tmp_path / "copy")
    data = next(tmp_path.glob("copy.data-*"))
    changed = bytearray(data.read_bytes())
    changed[3] ^= 1
    data.write_bytes(changed)
    with open_source(source) as reader, pytest.raises(CheckpointError, match="was removed"):
        verify(reader, target, Selection())
    assert [path.name for path in tmp_path.iterdir()] == ["x.h5"]
