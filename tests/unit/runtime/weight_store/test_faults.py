"""Damage, a full disk, another run or a deleted folder: a file store raises or warns, and never uses wrong values."""

from __future__ import annotations

import errno
import gc
import json
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import numpy as np
import pytest

from cerebras_tensorflow.errors import CheckpointError, CorruptCheckpointError, StoreError
from cerebras_tensorflow.graph.program import WeightSpec
from cerebras_tensorflow.runtime.host.disk_space import Need
from cerebras_tensorflow.runtime.weight_store import blocks
from cerebras_tensorflow.runtime.weight_store.file import FileStore
from cerebras_tensorflow.runtime.weight_store.folder import remove_left_stores
from cerebras_tensorflow.runtime.weight_store.interface import Move, WeightStore
from cerebras_tensorflow.runtime.weight_store.mapped import MappedStore
from tests.unit.runtime.faulty_os import FaultyOs

ROWS, WIDTH = 700, 100
SPEC = WeightSpec("layer/kernel", "float32", (ROWS, WIDTH), ROWS * WIDTH * 4)
SPECS = (SPEC, WeightSpec("layer/bias", "float32", (WIDTH,), WIDTH * 4))
ROOT = Path(__file__).resolve().parents[4]


@pytest.fixture(params=[False, True], ids=["cached", "direct"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FileStore]:
    opened = FileStore(SPECS, tmp_path / "store", is_direct=request.param)
    opened.write(0, numbers())
    opened.flush()
    yield opened
    opened.close()


def numbers(add: float = 0) -> np.ndarray:
    return np.arange(ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH) + np.float32(add)


def flip_a_bit(store: FileStore, byte: int) -> None:
    path = store._folder.path
    store.drop_cache()
    with open(path, "r+b") as file:
        file.seek(byte)
        value = file.read(1)[0]
        file.seek(byte)
        file.write(bytes([value ^ 4]))
        file.flush()
        os.fsync(file.fileno())
    store.drop_cache()


@pytest.mark.parametrize("how", ["whole", "slice", "rows", "neighbour written"])
def test_a_flipped_bit_ends_the_run_and_names_the_weight(store: FileStore, how: str) -> None:
    flip_a_bit(store, 150_001)
    with pytest.raises(
        StoreError, match=r"layer/kernel is damaged in the weight store: .* go(es)? on from the last"
    ) as e:
        if how == "whole":
            store.read(0)
        elif how == "slice":
            store.read_slice(0, 370, 380)
        elif how == "rows":
            store.read_rows(0, np.array([0, 375]))
        else:
            store.write_slice(0, 380, np.zeros((5, WIDTH), np.float32))  # shares the block of byte 150001
            store.flush()
    assert "weight_store_dir" in str(e.value)
    with pytest.raises(StoreError, match="layer/kernel is damaged"):
        store.write(1, np.zeros(WIDTH, np.float32))
    with pytest.raises(StoreError, match="layer/kernel is damaged"):
        store.flush()


@pytest.mark.parametrize("how", ["whole", "private", "slice", "rows", "update", "neighbour written", "saved"])
def test_a_flipped_bit_in_a_mapped_file_ends_the_run_and_names_the_weight(how: str, tmp_path: Path) -> None:
    store = MappedStore(SPECS, tmp_path / "store")
    store.write(0, numbers())
    store.write(1, np.ones(WIDTH, np.float32))
    lent = store.lend(0, 100, 200)  # so that checksums have the bounds of an update
    lent[:-1] += 1
    store.write_slice(0, 100, lent[:-1].reshape(100, WIDTH))
    with open(store._folder.path, "r+b", buffering=0) as file:
        byte = os.pread(file.fileno(), 1, 60_001)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 16]), 60_001)  # row 150
    with pytest.raises(StoreError, match=r"layer/kernel is damaged in the weight store: bytes 40000 to 80000") as e:
        if how == "whole":
            store.read(0)
        elif how == "private":
            store.read_private(0)
        elif how == "slice":
            store.read_slice(0, 199, 210)
        elif how == "rows":
            store.read_rows(0, np.array([[690], [120]]))
        elif how == "update":
            store.lend(0, 100, 200)
        elif how == "neighbour written":
            store.write_slice(0, 190, np.zeros((5, WIDTH), np.float32))
        else:
            for _ in store.snapshot().pieces(0):
                pass
    assert "weight_store_dir" in str(e.value) and "the last checkpoint" in str(e.value)
    for use in (lambda: store.write(1, np.zeros(WIDTH, np.float32)), lambda: store.read(1), store.flush):
        with pytest.raises(StoreError, match="layer/kernel is damaged"):
            use()
    store.close()


def test_undamaged_rows_stay_readable_until_damage_is_found(store: FileStore) -> None:
    flip_a_bit(store, 150_001)
    np.testing.assert_array_equal(store.read_slice(0, 0, 300), numbers()[:300])


def test_a_truncated_store_names_the_weight(store: FileStore) -> None:
    store.drop_cache()
    os.truncate(store._folder.path, 70_000)
    with pytest.raises(StoreError, match="layer/kernel ends early in the weight store"):
        store.read(0)


@pytest.mark.parametrize("kind", ["mapped", "file"])
def test_a_weight_that_was_never_written_is_an_error_and_not_zeros(kind: str, tmp_path: Path) -> None:
    store: WeightStore = MappedStore(SPECS, tmp_path) if kind == "mapped" else FileStore(SPECS, tmp_path)
    for read in (lambda: store.read(0), lambda: store.read_rows(0, np.array([3])), lambda: store.read_slice(0, 0, 2)):
        with pytest.raises(StoreError, match="layer/kernel was never written to the weight store"):
            read()
    store.write_slice(0, 100, numbers()[100:200])
    np.testing.assert_array_equal(store.read_slice(0, 100, 200), numbers()[100:200])
    with pytest.raises(StoreError, match="layer/kernel was never written"):
        store.read_slice(0, 99, 200)
    with pytest.raises(StoreError, match="layer/kernel was never written"):
        store.read(0)
    store.write_slice(0, 0, numbers()[:100])
    store.write_slice(0, 200, numbers()[200:])
    np.testing.assert_array_equal(store.read(0), numbers())
    store.close()


def test_a_second_run_on_a_store_is_refused_and_the_error_names_the_owner(store: FileStore) -> None:
    folder = store._folder.folder
    with pytest.raises(
        StoreError, match=rf"{folder} is in use by another run \(process {os.getpid()} .*weight_store_dir"
    ):
        FileStore(SPECS, folder)
    np.testing.assert_array_equal(store.read(0), numbers())


def test_an_unclosed_store_does_not_block_its_folder(tmp_path: Path) -> None:
    store = FileStore(SPECS, tmp_path)
    del store
    gc.collect()
    assert list(tmp_path.iterdir()) == []
    FileStore(SPECS, tmp_path).close()


def test_the_next_run_removes_the_store_of_a_killed_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    code = (
        "import sys, os, signal; from pathlib import Path\n"
        "from cerebras_tensorflow.graph.program import WeightSpec\n"
        "from cerebras_tensorflow.runtime.weight_store.file import FileStore\n"
        f"store = FileStore([WeightSpec('w', 'float32', (100000,), 400000)], Path({str(tmp_path)!r}))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"})
    assert done.returncode == -signal.SIGKILL
    owner = json.loads((tmp_path / "owner.json").read_text())
    assert "not a checkpoint" in owner["about"] and "may be deleted" in owner["about"]
    shutil.copytree(tmp_path, tmp_path / "other")
    with caplog.at_level(logging.WARNING):
        store = FileStore(SPECS, tmp_path)
    assert "removed the stale weight store" in caplog.text and f"process {owner['process']}" in caplog.text
    remove_left_stores(tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["other", "owner.json", "weights.scratch"]
    store.write(0, numbers())
    np.testing.assert_array_equal(store.read(0), numbers())
    store.close()
    (tmp_path / "other").rmdir()
    assert list(tmp_path.iterdir()) == []


def test_a_deleted_folder_gives_one_warning_and_loses_no_weight(
    store: FileStore, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(store._folder.folder)
    with caplog.at_level(logging.WARNING):
        store.write(0, numbers(add=1))
        store.flush()
        store.flush()
    assert caplog.text.count("was deleted while this run uses it. The run goes on") == 1
    np.testing.assert_array_equal(store.read(0), numbers(add=1))


def test_the_error_of_a_full_disk_says_how_much_is_missing(tmp_path: Path) -> None:
    store = FileStore(SPECS, tmp_path)
    store.write(0, numbers())
    store.flush()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        store.write(0, numbers(add=1))
        with pytest.raises(
            StoreError, match=r"layer/kernel could not be written .*\. The store needs .* more .* limit"
        ):
            store.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    with pytest.raises(StoreError, match="Checkpoints are not touched"):
        store.read(1)
    store.close()


def test_a_full_disk_is_an_error_before_the_first_step(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(StoreError, match=r"cannot reserve 286\.7 kB in .*weight_store_dir"):
            FileStore(SPECS, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_store_and_checkpoints_on_one_disk_are_checked_together(tmp_path: Path) -> None:
    checkpoint = Need("a checkpoint", tmp_path / "model_dir", 10**18, "model_dir")
    with pytest.raises(
        StoreError,
        match=r"the weight store needs 286\.7 kB in .* and a checkpoint needs 1000000\.0 TB in .*, on the same disk, "
        r"which has .* free; free .*, or choose another folder with weight_store_dir or model_dir",
    ):
        FileStore(SPECS, tmp_path / "store", beside=[checkpoint])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk, which root alone may")
def test_a_disk_filled_by_others_does_not_affect_reserved_space(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount: {mounted.stderr.decode()}")
    try:
        with pytest.raises(StoreError, match=r"needs 4\.0 MB in .*, which has 2\.1 MB free; free 1\.9 MB"):
            FileStore([WeightSpec("w", "float32", (10**6,), 4 * 10**6)], disk / "store")
        store = FileStore(SPECS, disk / "store")
        with pytest.raises(OSError, match="No space left"), open(disk / "other", "wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))
        for add in range(3):
            store.write(0, numbers(add))
        np.testing.assert_array_equal(store.read(0), numbers(2))
        with pytest.raises(StoreError, match="a snapshot of the weights needs"):
            store.snapshot()
        np.testing.assert_array_equal(store.read(0), numbers(2))
        store.close()
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    path = tmp_path / "checkpoint.data"
    path.write_bytes(b"head." + numbers().tobytes() + b"tail")
    return path


def adopt(store: FileStore, path: Path) -> None:
    assert store.adopt(0, path, 5, google_crc32c.value(numbers().tobytes()))


def test_a_weight_stays_in_the_checkpoint_until_it_is_written(tmp_path: Path, checkpoint: Path) -> None:
    store = FileStore(SPECS, tmp_path / "store")
    adopt(store, checkpoint)
    checkpoint.unlink()
    np.testing.assert_array_equal(store.read(0), numbers())
    np.testing.assert_array_equal(store.read_rows(0, np.array([699, 3])), numbers()[[699, 3]])
    assert store.bytes_written == 0
    expected = numbers()
    for start in (500, 20, 690, 0):
        expected[start : start + 10] = -start
        store.write_slice(0, start, expected[start : start + 10].copy())
    np.testing.assert_array_equal(store.read(0), expected)
    snapshot = store.snapshot()
    store.write(0, numbers(add=7))
    kept = np.concatenate([piece.copy() for piece in snapshot.pieces(0)])
    np.testing.assert_array_equal(kept.view(np.float32).reshape(ROWS, WIDTH), expected)
    snapshot.close()
    np.testing.assert_array_equal(store.read(0), numbers(add=7))
    store.close()


def test_the_error_of_a_failing_disk_names_the_checkpoint(
    tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(SPECS, tmp_path / "store")
    with monkeypatch.context() as patch:
        FaultyOs(errno.EIO, 0).replace_in(patch, [blocks])
        with pytest.raises(CheckpointError, match=r"checkpoint\.data cannot be read \(Input/output error\)"):
            adopt(store, checkpoint)
    adopt(store, checkpoint)
    np.testing.assert_array_equal(store.read(0), numbers())
    store.close()


def test_a_damaged_checkpoint_is_found_when_the_store_adopts_it(tmp_path: Path, checkpoint: Path) -> None:
    store = FileStore(SPECS, tmp_path / "store")
    content = bytearray(checkpoint.read_bytes())
    content[1000] ^= 1
    checkpoint.write_bytes(content)
    with pytest.raises(CorruptCheckpointError, match=r"checkpoint\.data: bytes 5 to 280005 are damaged"):
        adopt(store, checkpoint)
    checkpoint.write_bytes(content[:2000])
    with pytest.raises(CorruptCheckpointError, match="cut short"):
        adopt(store, checkpoint)
    store.close()


def test_a_checkpoint_changed_after_adoption_is_found(tmp_path: Path, checkpoint: Path) -> None:
    store = FileStore(SPECS, tmp_path / "store")
    adopt(store, checkpoint)
    with open(checkpoint, "r+b") as file:
        file.seek(200_000)
        file.write(b"\xff\xff")
    with pytest.raises(
        StoreError, match=r"layer/kernel is damaged in .*checkpoint\.data, the checkpoint .*Start again"
    ):
        store.read(0)
    store.close()


def test_slices_written_from_many_threads_are_read_back(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    store = FileStore(SPECS, tmp_path, max_pending_bytes=200_000)
    store.write(0, numbers())

    def update(start: int) -> None:
        for _ in range(10):
            store.write_slice(0, start, store.read_slice(0, start, start + 70) + np.float32(1))

    with ThreadPoolExecutor(10) as pool:
        list(pool.map(update, range(0, ROWS, 70)))
    np.testing.assert_array_equal(store.read(0), numbers() + np.float32(10))
    store.close()


def test_each_move_is_reported_with_its_bytes_and_times(store: FileStore) -> None:
    moves: list[Move] = []
    store.on_move = moves.append
    store.read_slice(0, 0, 7)
    store.read_rows(0, np.array([1, 1, 5]))
    store.write_slice(0, 0, numbers()[:7])
    store.flush()
    assert [(m.kind, m.weight, m.num_bytes) for m in moves] == [
        ("load", 0, 7 * WIDTH * 4),
        ("gather", 0, 2 * WIDTH * 4),
        ("store", 0, 7 * WIDTH * 4),
    ]
    assert all(move.begin_s < move.end_s for move in moves)
