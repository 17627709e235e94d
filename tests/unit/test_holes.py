"""Zeros in a new checkpoint take no disk space, and come back."""

import os
from pathlib import Path

import numpy as np
import pytest

from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint
from cerebras_tensorflow.saver.checkpoint_writer import open_writer

MEGABYTE = 1 << 20


@pytest.mark.parametrize("ending", ["", ".h5"])
def test_zeros_take_no_disk_space_and_come_back(tmp_path: Path, ending: str) -> None:
    path = str(tmp_path / f"model-ckpt-0{ending}")
    weight = np.arange(MEGABYTE // 4, dtype=np.float32)
    ended_by_one = np.zeros(9 * MEGABYTE // 4 + 3, np.float32)
    ended_by_one[-1] = 1
    values = {"a": weight, "a/Adam": np.zeros((8, MEGABYTE), np.float32), "b": ended_by_one}
    values["z"] = np.zeros(5 * MEGABYTE // 4 + 1, np.float32)  # the file ends with zeros
    with open_writer(path) as writer:
        for name, value in values.items():
            writer.add_chunks(name, value.dtype, value.shape, [value])
    with open_checkpoint(path) as reader:
        for name, value in values.items():
            assert reader.read(name).tobytes() == value.tobytes(), name
    stored = sum(os.stat(file).st_blocks * 512 for file in tmp_path.iterdir())
    assert stored < 8 * MEGABYTE < sum(value.nbytes for value in values.values())
