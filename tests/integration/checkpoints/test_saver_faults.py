"""Checkpoints against what goes wrong: full disks, kill -9, flipped bits, hostile bytes. Real files, real processes."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.saver import tf_h5_saver
from cerebras_tensorflow.saver.bundle.writer import BundleWriter
from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint
from tests.integration.checkpoints import saver_fuzz

KINDS = ["bundle", "h5", "shards", "gzip", "update", "update shards", "to_h5", "to_tensorflow"]
_HURT = Path(__file__).with_name("saver_hurt.py")


def hurt(what: str, kind: str, folder: Path, count: int, seed: int = 1) -> None:
    """Run saver_hurt.py, which says what it does; it fails if a checkpoint was lost."""
    environment = dict(os.environ, PYTHONPATH=str(Path(__file__).parents[3]))
    arguments = [sys.executable, str(_HURT), what, kind, str(folder), str(count), str(seed)]
    done = subprocess.run(arguments, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_disk_gives_one_clear_error_and_changes_nothing(tmp_path: Path, kind: str) -> None:
    """A file size limit affects a process like a full disk."""
    hurt("limit", kind, tmp_path, 20)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
@pytest.mark.parametrize("kind", KINDS)
def test_a_small_disk_gives_one_clear_error_and_changes_nothing(tmp_path: Path, kind: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1g", "none", tmp_path], check=True)
    try:
        hurt("disk", kind, tmp_path, 20)
    finally:
        subprocess.run(["umount", tmp_path], check=True)


@pytest.mark.parametrize("kind", KINDS)
def test_kills_at_random_moments_lose_nothing(tmp_path: Path, kind: str) -> None:
    hurt("kill", kind, tmp_path, 5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_200_kills_lose_nothing(tmp_path: Path, kind: str) -> None:
    hurt("kill", kind, tmp_path, 200)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bundle", "h5", "lz4", "shards"])
def test_each_of_1000_damaged_bytes_is_found(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(4)
    values = {f"layer_{k}/kernel": rng.random((50, k)) for k in range(40)}
    path = tmp_path / ("c" if kind == "bundle" else "c.h5")
    if kind == "bundle":
        with BundleWriter(path) as writer:
            for name, value in values.items():
                writer.add(name, value)
    else:
        tf_h5_saver.save(path, values, 100_000 if kind == "shards" else None, "lz4" if kind == "lz4" else "none")
    files = sorted(tmp_path.iterdir())
    ends = np.cumsum([file.stat().st_size for file in files])
    for position in rng.integers(0, ends[-1], 1000):
        which = int(np.searchsorted(ends, position, "right"))
        offset = int(position - (ends[which - 1] if which else 0))
        with open(files[which], "r+b") as file:
            file.seek(offset)
            byte = file.read(1)[0]
            file.seek(offset)
            file.write(bytes([byte ^ int(rng.integers(1, 256))]))
            file.flush()
            with pytest.raises(CheckpointError), open_checkpoint(path) as reader:
                reader.verify()
            file.seek(offset)
            file.write(bytes([byte]))
    with open_checkpoint(path) as reader:
        reader.verify()


_CORPUS = Path(__file__).parent / "saver_corpus"


def test_every_file_of_the_corpus_is_read_or_refused(tmp_path: Path) -> None:
    assert saver_fuzz.replay(tmp_path, _CORPUS) > 50


def test_mutated_files_are_read_or_refused(tmp_path: Path) -> None:
    tried, died, _ = saver_fuzz.fuzz(tmp_path, 4, seed=1)
    assert tried > 20
    assert died * 10 < tried


@pytest.mark.slow
def test_ten_minutes_of_mutated_files_are_read_or_refused(tmp_path: Path) -> None:
    tried, died, ends = saver_fuzz.fuzz(tmp_path, 600, seed=int(time.time()))
    print(f"{tried} files, {len(ends)} different ends, {died} crashed libhdf5")
    assert died * 20 < tried
