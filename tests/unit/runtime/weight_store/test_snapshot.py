"""A snapshot keeps the values that the store had, whatever training writes meanwhile."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from cerebras_tensorflow.errors import StoreError
from cerebras_tensorflow.graph.program import WeightSpec
from cerebras_tensorflow.runtime.weight_store.file import FileStore
from cerebras_tensorflow.runtime.weight_store.interface import WeightStore
from cerebras_tensorflow.runtime.weight_store.mapped import MappedStore
from cerebras_tensorflow.runtime.weight_store.remote import ServerStore
from cerebras_tensorflow.runtime.weight_store.snapshot import StoreSnapshot
from tests.unit.runtime.weight_store.test_remote import weight_servers

ROWS = 600
SPECS = (
    *(WeightSpec(f"w{k}", "float32", (ROWS, 100), ROWS * 400) for k in range(4)),
    WeightSpec("scalar", "float32", (), 4),
)


@pytest.fixture(params=["mapped", "file", "servers"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[WeightStore]:
    with ExitStack() as stack:
        make: dict[str, Callable[[], WeightStore]] = {
            "mapped": lambda: MappedStore(SPECS, tmp_path / "store"),
            "file": lambda: FileStore(SPECS, tmp_path / "store"),
            "servers": lambda: ServerStore(SPECS, stack.enter_context(weight_servers(2))),
        }
        opened = make[request.param]()
        for index, spec in enumerate(SPECS):
            opened.write(index, np.full(spec.shape, index, np.float32))
        yield opened
        if request.function is not test_a_snapshot_outlives_its_store:
            opened.close()


def value_in(snapshot: StoreSnapshot, index: int) -> np.ndarray:
    pieces = [piece.copy() for piece in snapshot.pieces(index)]
    return np.concatenate(pieces).view(np.float32).reshape(SPECS[index].shape)


def test_a_snapshot_keeps_the_old_values_through_whole_and_sliced_writes(store: WeightStore) -> None:
    snapshot = store.snapshot()
    store.write(0, np.full(SPECS[0].shape, 70, np.float32))
    for start in (300, 0, 450, 150):
        store.write_slice(1, start, np.full((150, 100), 71 + start, np.float32))
    store.write_slice(2, 10, np.full((5, 100), 72, np.float32))
    store.write(4, np.array(7, np.float32))
    store.flush()
    for index in range(5):
        assert (value_in(snapshot, index) == index).all()
    assert (store.read(0) == 70).all() and store.read(4) == 7
    assert [store.read(1)[row, 0] for row in (0, 150, 300, 450)] == [71, 221, 371, 521]
    two = store.read(2)
    assert (two[10:15] == 72).all() and (two[:10] == 2).all() and (two[15:] == 2).all()
    assert (store.read_rows(2, np.array([9, 12, 15]))[:, 0] == [2, 72, 2]).all()
    assert (store.read_slice(2, 8, 12)[:, 0] == [2, 2, 72, 72]).all()
    assert (store.read(3) == 3).all()
    snapshot.close()


def test_random_writes_and_snapshots_agree_with_plain_arrays(store: WeightStore) -> None:
    choose = random.Random(8)
    plain = [np.array(store.read(index)) for index in range(5)]
    snapshot: StoreSnapshot | None = None
    then: list[np.ndarray] = []
    kept: set[int] = set()
    for number in range(400):
        index = choose.randrange(4)
        action = choose.randrange(10)
        if action == 0 and snapshot is None:
            snapshot, then, kept = store.snapshot(), [value.copy() for value in plain], set(range(5))
        elif action == 1 and snapshot is not None:
            snapshot.close()
            snapshot = None
        elif action == 2 and snapshot is not None and index in kept:
            np.testing.assert_array_equal(value_in(snapshot, index), then[index])
            snapshot.release(index)
            kept.discard(index)
        elif action < 5:
            plain[index][:] = number
            store.write(index, plain[index].copy())
        else:
            start = choose.randrange(ROWS)
            stop = choose.randrange(start, ROWS) + 1
            plain[index][start:stop] = number
            store.write_slice(index, start, plain[index][start:stop].copy())
        first = choose.randrange(ROWS)
        np.testing.assert_array_equal(store.read_slice(index, first, ROWS), plain[index][first:])
    for index in range(5):
        np.testing.assert_array_equal(store.read(index), plain[index])
    if snapshot is not None:
        snapshot.close()


def test_a_snapshot_outlives_its_store(store: WeightStore) -> None:
    snapshot = store.snapshot()
    store.close()
    for index in range(5):
        assert (value_in(snapshot, index) == index).all()
        snapshot.release(index)
    snapshot.close()


def test_a_snapshot_of_a_weight_that_was_never_written_is_an_error_and_not_zeros(tmp_path: Path) -> None:
    with weight_servers(1) as servers:
        for store in (
            MappedStore(SPECS, tmp_path / "mapped"),
            FileStore(SPECS, tmp_path / "file"),
            ServerStore(SPECS, servers),
        ):
            store.write_slice(0, 3, np.ones((5, 100), np.float32))
            store.write(4, np.array(7, np.float32))
            snapshot = store.snapshot()
            store.write(1, np.ones(SPECS[1].shape, np.float32))
            for index in (0, 1):
                with pytest.raises(StoreError, match=f"w{index} was never written"):
                    list(snapshot.pieces(index))
            assert value_in(snapshot, 4) == 7
            snapshot.close()
            store.close()


def test_one_snapshot_at_a_time(store: WeightStore) -> None:
    first = store.snapshot()
    with pytest.raises(StoreError, match="has not been closed"):
        store.snapshot()
    first.close()
    store.snapshot().close()


def test_the_file_shrinks_to_one_slot_per_weight_after_a_snapshot(tmp_path: Path) -> None:
    store = FileStore(SPECS, tmp_path)
    used = [0, 0]
    for turn in range(2):
        snapshot = store.snapshot()
        for index in range(3):
            for start in range(0, ROWS, 100):
                store.write_slice(index, start, np.zeros((100, 100), np.float32))
        store.flush()
        snapshot.close()
        used[turn] = os.fstat(store._folder.file).st_blocks * 512
    store.close()
    size = sum(spec.num_bytes for spec in SPECS)
    assert abs(used[0] - used[1]) < 0.05 * size and size <= used[0] < 1.2 * size


def test_a_refused_snapshot_does_not_stop_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(SPECS, tmp_path)
    store.write(0, np.ones(SPECS[0].shape, np.float32))

    with monkeypatch.context() as patch:
        patch.setattr("cerebras_tensorflow.runtime.host.disk_space.free_bytes", lambda folder: 1000)
        with pytest.raises(StoreError, match=r"a snapshot of the weights needs 9.* kB in .* which has 1.0 kB free"):
            store.snapshot()
    store.write(0, np.zeros(SPECS[0].shape, np.float32))
    store.snapshot().close()
    store.close()
