"""convert: verify removes a copy that differs from its source, and keeps it if the source or the reading fails."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cerebras_tensorflow.errors import CheckpointError, CorruptCheckpointError
from cerebras_tensorflow.saver import tf_h5_saver
from cerebras_tensorflow.saver.bundle.reader import BundleReader
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


def test_verify_removes_a_copy_that_lacks_a_tensor(tmp_path: Path, source: str) -> None:
    tf_h5_saver.save(str(tmp_path / "copy.h5"), {"w": VALUES["w"]})
    with open_source(source) as reader, pytest.raises(CorruptCheckpointError, match="tensor 'b' differs"):
        verify(reader, str(tmp_path / "copy.h5"), Selection())
    assert [path.name for path in tmp_path.iterdir()] == ["x.h5"]


def test_verify_keeps_a_copy_if_the_source_is_damaged(tmp_path: Path) -> None:
    first, target = write(tmp_path / "first"), write(tmp_path / "copy")
    data = next(tmp_path.glob("first.data-*"))
    changed = bytearray(data.read_bytes())
    changed[3] ^= 1
    data.write_bytes(changed)
    with open_source(first) as reader, pytest.raises(CheckpointError, match=r"first.*not verified, and stays"):
        verify(reader, target, Selection())
    with open_source(target) as reader:
        assert reader.verify() > 0


@pytest.mark.parametrize("method", ["verify", "chunks", "__init__"])
def test_verify_keeps_a_copy_that_cannot_be_read_now(
    tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    target = write(tmp_path / "copy")

    def fail(*words: Any) -> None:
        raise CheckpointError("the key has expired")

    with monkeypatch.context() as patch, open_source(source) as reader:
        patch.setattr(BundleReader, method, fail)
        with pytest.raises(CheckpointError, match=r"expired.*not verified, and stays; verify it with: cs-checkpoint"):
            verify(reader, target, Selection())
    with open_source(target) as copied:
        assert copied.verify() > 0
