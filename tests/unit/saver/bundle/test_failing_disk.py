"""A disk that fails while a bundle is committed: the error names the disk, and no half of a checkpoint is in place."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cerebras_tensorflow import files
from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.saver.bundle.writer import BundleWriter
from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint


@pytest.fixture
def writer(tmp_path: Path) -> BundleWriter:
    result = BundleWriter(tmp_path / "c", lambda name, size: int(name == "b"))
    for name in "ab":
        result.add(name, np.arange(4))
    return result


def read_only(*_: Any, **__: Any) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


@pytest.mark.parametrize("good", range(3))
def test_a_folder_that_cannot_be_flushed_leaves_a_whole_checkpoint_or_none(
    good: int, writer: BundleWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush, calls = files.sync_folder, []

    def fail(folder: Any) -> None:
        calls.append(folder)
        (flush if len(calls) <= good else read_only)(folder)

    monkeypatch.setattr(files, "sync_folder", fail)
    with pytest.raises(CheckpointError, match="Read-only file system"):
        writer.commit()
    if good == 2:  # after both data files, the index was renamed, then not flushed
        with open_checkpoint(tmp_path / "c") as reader:
            reader.verify()
    else:
        writer.abort()
        assert list(tmp_path.iterdir()) == []


def test_a_disk_that_becomes_read_only_is_named(writer: BundleWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "put_in_place", read_only)
    monkeypatch.setattr(os, "unlink", read_only)
    with pytest.raises(CheckpointError, match=r"Read-only file system\. Choose a folder that you may write to"):
        writer.commit()
