"""Checkpoints against what goes wrong: full disks, kill -9, flipped bits, hostile bytes. Real files, real processes."""

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.saver import tf_h5_saver
from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint
from cerebras_tensorflow.saver.safetensors_format import SafetensorsWriter
from cerebras_tensorflow.saver.tensor_bundle import BundleWriter

KINDS = ["bundle", "h5", "shards", "gzip", "update", "update shards", "to_h5", "to_tensorflow"]
_HURT = Path(__file__).with_name("saver_hurt.py")


def hurt(what: str, kind: str, folder: Path, count: int, seed: int = 1) -> None:
    """Run saver_hurt.py, which says what it does; it fails if a checkpoint was lost."""
    environment = dict(os.environ, PYTHONPATH=str(Path(__file__).parents[2]))
    arguments = [sys.executable, str(_HURT), what, kind, str(folder), str(count), str(seed)]
    done = subprocess.run(arguments, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_disk_is_one_clear_error_and_changes_nothing(tmp_path: Path, kind: str) -> None:
    """A limit on the size of files is what a full disk looks like to a process."""
    hurt("limit", kind, tmp_path, 20)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
@pytest.mark.parametrize("kind", KINDS)
def test_a_small_disk_is_one_clear_error_and_changes_nothing(tmp_path: Path, kind: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1g", "none", tmp_path], check=True)
    try:
        hurt("disk", kind, tmp_path, 20)
    finally:
        subprocess.run(["umount", tmp_path], check=True)


@pytest.mark.parametrize("kind", KINDS)
def test_kill_at_random_moments_loses_nothing(tmp_path: Path, kind: str) -> None:
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


# Opens each file given on its standard input, reads all of it, and says so; any other error than ours ends it.
_FUZZED = """
import sys
from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint
for line in sys.stdin:
    try:
        with open_checkpoint(line.strip(), accept_changed=True) as reader:
            for name in reader.names():
                reader.read(name)
            reader.verify()
    except (CheckpointError, KeyError):
        pass
    print("ok", flush=True)
"""

# Files that a reader of ours failed on are kept here; none so far.
_CORPUS = Path(__file__).parent / "saver_corpus"


def seeds(folder: Path) -> list[Path]:
    """Write a small valid file of each kind; return the paths to open."""
    values = {"a/b": np.arange(6, dtype=np.float32).reshape(2, 3), "step": np.int64(3)}
    with BundleWriter(folder / "bundle") as writer:
        for name, value in [*values.items(), ("text", np.array([b"x", b"yy"], object))]:
            writer.add(name, value)
    tf_h5_saver.save(folder / "ours.h5", values)
    tf_h5_saver.save(folder / "gzip.h5", values, compression="gzip")
    with h5py.File(folder / "plain.h5", "w") as file:
        file["group/w"] = values["a/b"]
        file["text"] = ["a", "b"]
    with open_checkpoint(folder / "ours.h5") as reader:
        entries = {name: reader.entry(name) for name in reader.names()}
    with SafetensorsWriter(folder / "s.safetensors", entries) as writer:
        for name in entries:
            writer.add(name, values[name])
    return [folder / name for name in ("bundle", "ours.h5", "gzip.h5", "plain.h5", "s.safetensors")]


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Return bytes with a few of them changed, cut, repeated or set to extremes."""
    out = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        position = rng.randrange(len(out)) if out else 0
        choice = rng.randrange(5)
        if choice == 0 and out:
            out[position] ^= 1 << rng.randrange(8)
        elif choice == 1 and out:
            out[position : position + 8] = rng.choice([b"\xff" * 8, b"\0" * 8, b"\x7f" + b"\xff" * 7])
        elif choice == 2:
            del out[position:]
        elif choice == 3:
            out[position:position] = out[position : position + rng.randrange(64)]
        else:
            del out[position : position + rng.randrange(1, 16)]
    return bytes(out)


def fuzz(folder: Path, seconds: float, seed: int) -> tuple[int, int]:
    """Feed mutated files to the readers; return (files tried, processes that libhdf5 took down)."""
    rng = random.Random(seed)
    originals = folder / "seeds"
    originals.mkdir()
    paths = seeds(originals)
    work = folder / "work"
    tried = died = 0
    end = time.monotonic() + seconds
    environment = dict(os.environ, MALLOC_ARENA_MAX="1")
    process = None
    while time.monotonic() < end:
        if process is None:
            process = subprocess.Popen(
                [sys.executable, "-c", _FUZZED],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        path = rng.choice(paths)
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(originals, work)
        target = rng.choice([file for file in work.iterdir() if file.name.startswith(path.name)])
        target.write_bytes(mutated(target.read_bytes(), rng))
        process.stdin.write(f"{work / path.name}\n")
        process.stdin.flush()
        tried += 1
        if process.stdout.readline() != "ok\n":
            error = process.stderr.read()
            process.wait()
            process.stdin.close()
            process.stdout.close()
            process.stderr.close()
            _CORPUS.mkdir(exist_ok=True)
            kept = _CORPUS / f"{path.name}-{seed}-{tried}"
            # A traceback is ours to mend; a signal is libhdf5's.
            if process.returncode >= 0 or not path.name.endswith(".h5"):
                shutil.copy(target, kept)
                raise AssertionError(f"{kept}: exit {process.returncode}\n{error}")
            died += 1
            process = None
    if process is not None:
        process.communicate()
    return tried, died


def test_mutated_files_are_read_or_refused(tmp_path: Path) -> None:
    tried, died = fuzz(tmp_path, 4, seed=1)
    assert tried > 50
    assert died * 20 < tried


@pytest.mark.slow
def test_ten_minutes_of_mutated_files_are_read_or_refused(tmp_path: Path) -> None:
    tried, died = fuzz(tmp_path, 600, seed=int(time.time()))
    print(f"{tried} files, {died} took libhdf5 down")
    assert died * 20 < tried
