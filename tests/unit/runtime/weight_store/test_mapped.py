"""What only the mapped store does: disk space, cache, closing of snapshots."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cerebras_tensorflow.errors import StoreError
from cerebras_tensorflow.graph.program import WeightSpec
from cerebras_tensorflow.runtime.host import disk_space
from cerebras_tensorflow.runtime.host.disk_space import Need
from cerebras_tensorflow.runtime.weight_store import mapped as weight_store_mapped
from cerebras_tensorflow.runtime.weight_store.mapped import MappedStore
from cerebras_tensorflow.runtime.weight_store.snapshot import StoreSnapshot

ROWS = 1024
SPECS = (
    *(WeightSpec(f"w{k}", "float32", (ROWS, 64), ROWS * 256) for k in range(4)),
    WeightSpec("odd", "float32", (3,), 12),
    WeightSpec("empty", "float32", (0, 4), 0),
)
TOTAL = 4 * ROWS * 256 + 4096  # bytes in the file: each weight begins at a page
METADATA_BYTES = 16 * 1024


def filled(index: int, number: float) -> np.ndarray:
    return np.full(SPECS[index].shape, number, np.float32)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MappedStore]:
    opened = MappedStore(SPECS, tmp_path / "store")
    for index in range(len(SPECS)):
        opened.write(index, filled(index, index))
    yield opened
    opened.close()


def disk_bytes(folder: Path) -> int:
    """Disk space of the store's file, without the page or so of file system metadata."""
    (path,) = (path for path in folder.iterdir() if path.name != "owner.json")
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    blocks = path.stat().st_blocks * 512
    return blocks - blocks % TOTAL if blocks % TOTAL <= METADATA_BYTES else blocks


def value_in(snapshot: StoreSnapshot, index: int) -> np.ndarray:
    pieces = [piece.copy() for piece in snapshot.pieces(index)]
    return np.concatenate(pieces).view(np.float32).reshape(SPECS[index].shape)


def assert_holds(store: MappedStore, numbers: list[float]) -> None:
    for index, number in enumerate(numbers):
        np.testing.assert_array_equal(store.read(index), filled(index, number))


def test_disk_space_of_a_closed_snapshot_is_freed_after_the_step(store: MappedStore, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    assert disk_bytes(folder) == TOTAL
    for turn in range(3):
        snapshot = store.snapshot()
        assert disk_bytes(folder) == 2 * TOTAL  # reserved at once, not when training gets there
        for index in range(2):  # the others do not move
            store.write(index, filled(index, 10 * turn + index))
        store.write_slice(2, 0, filled(2, turn)[:1])
        snapshot.close()
        assert disk_bytes(folder) == 2 * TOTAL
        store.between_steps()
        assert disk_bytes(folder) == TOTAL
        assert_holds(store, [10 * turn, 10 * turn + 1])
        np.testing.assert_array_equal(store.read(2), np.concatenate([filled(2, turn)[:1], filled(2, 2)[1:]]))
        np.testing.assert_array_equal(store.read(3), filled(3, 3))


def test_loaded_values_stay_valid_when_a_snapshot_is_closed_in_the_step(store: MappedStore) -> None:
    expected = filled(1, 1)
    snapshot = store.snapshot()
    loaded = store.read(1)
    lent = store.lend(1, 0, len(expected))
    lent[:-1] = 9
    store.write_slice(1, 0, lent[:-1].reshape(expected.shape))
    snapshot.close()
    np.testing.assert_array_equal(loaded, expected)
    assert (store.read(1) == 9).all()


def test_a_snapshot_without_room_is_refused_before_anything_is_reserved(
    store: MappedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(disk_space, "free_bytes", lambda folder: 1000)
        with pytest.raises(StoreError, match=r"a snapshot of the weights needs 1\.1 MB in .* which has 1\.0 kB free"):
            store.snapshot()
    assert disk_bytes(tmp_path / "store") == TOTAL
    assert_holds(store, [0, 1, 2, 3, 4, 5])
    store.snapshot().close()


def test_a_snapshot_that_fails_to_reserve_space_frees_it_again(
    store: MappedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def full_at_the_third(file: int, offset: int, num_bytes: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        disk_space.reserve(file, offset, num_bytes)

    with monkeypatch.context() as patch:
        patch.setattr(weight_store_mapped, "reserve", full_at_the_third)
        with pytest.raises(StoreError, match=r"a snapshot could not be kept in the weight store .*No space left"):
            store.snapshot()
    assert calls == 3
    assert disk_bytes(tmp_path / "store") == TOTAL
    assert_holds(store, [0, 1, 2, 3, 4, 5])
    store.snapshot().close()


def test_a_snapshot_stays_open_until_closed_even_if_all_is_released(store: MappedStore) -> None:
    first = store.snapshot()
    for index in range(len(SPECS)):
        first.release(index)
    with pytest.raises(StoreError, match="has not been closed"):
        store.snapshot()
    first.close()
    store.snapshot().close()


def test_closing_a_snapshot_twice_does_not_affect_the_next(store: MappedStore) -> None:
    first = store.snapshot()
    first.close()
    second = store.snapshot()
    store.write(1, filled(1, 7))  # goes to the other slot; the snapshot holds the old one
    first.close()
    np.testing.assert_array_equal(value_in(second, 1), filled(1, 1))
    with pytest.raises(StoreError, match="has not been closed"):
        store.snapshot()
    second.close()
    assert_holds(store, [0, 7, 2, 3])


def test_weights_released_by_a_snapshot_are_written_in_place(store: MappedStore) -> None:
    snapshot = store.snapshot()
    before = store.read(0)
    snapshot.release(0)
    store.write(0, filled(0, 7))
    assert np.shares_memory(before, store.read(0))
    np.testing.assert_array_equal(value_in(snapshot, 1), filled(1, 1))
    snapshot.close()


def test_a_snapshot_stays_readable_after_its_store_is_closed(tmp_path: Path) -> None:
    store = MappedStore(SPECS, tmp_path / "store")
    for index in range(4):
        store.write(index, filled(index, index + 1))
    snapshot = store.snapshot()
    store.write(0, filled(0, 9))
    store.close()
    assert not (tmp_path / "store").exists()
    again = MappedStore(SPECS, tmp_path / "store")  # the folder is free for the next run
    for index in range(4):
        again.write(index, filled(index, 100))
        np.testing.assert_array_equal(value_in(snapshot, index), filled(index, index + 1))
    snapshot.close()
    assert_holds(again, [100] * 4)
    again.close()


def test_a_closed_store_keeps_no_file_open_while_something_refers_to_it(tmp_path: Path) -> None:
    store = MappedStore(SPECS, tmp_path / "store")
    store.write(0, filled(0, 1))
    store.snapshot().close()
    store.close()
    store.close()
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    assert not [link for link in links if os.path.lexists(link) and str(tmp_path) in os.readlink(link)]


def test_values_survive_a_dropped_cache(store: MappedStore, tmp_path: Path) -> None:
    store.write_slice(1, 3, filled(1, 8)[:2])
    expected = store.read(1).copy()
    kept = store.read(2)
    store.drop_cache()
    np.testing.assert_array_equal(store.read(1), expected)
    np.testing.assert_array_equal(kept, filled(2, 2))
    assert_holds(store, [0])
    (path,) = (path for path in (tmp_path / "store").iterdir() if path.name != "owner.json")
    assert filled(3, 3).tobytes() in path.read_bytes()


def test_read_returns_a_reference_but_slices_and_private_reads_are_copies(store: MappedStore) -> None:
    assert np.shares_memory(store.read(0), store.read(0))
    assert not np.shares_memory(store.read(0), store.read_slice(0, 5, 9))
    assert not np.shares_memory(store.read(0), store.read_private(0))


def test_weights_and_checkpoints_on_one_disk_are_checked_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_space, "free_bytes", lambda folder: 2_000_000)
    checkpoint = Need("a checkpoint", tmp_path, 1_500_000, "model_dir")
    with pytest.raises(StoreError, match=r"the weight store needs 1\.1 MB .* and a checkpoint needs 1\.5 MB"):
        MappedStore(SPECS, tmp_path / "store", [checkpoint])
    assert list(tmp_path.iterdir()) == []
    MappedStore(SPECS, tmp_path / "store").close()
