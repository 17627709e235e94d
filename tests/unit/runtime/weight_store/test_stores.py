"""All stores hold what was written, at once and after a flush."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from cerebras_tensorflow.errors import StoreError
from cerebras_tensorflow.graph.program import WeightSpec
from cerebras_tensorflow.runtime.weight_store import file
from cerebras_tensorflow.runtime.weight_store.file import FileStore
from cerebras_tensorflow.runtime.weight_store.interface import WeightStore
from cerebras_tensorflow.runtime.weight_store.mapped import MappedStore
from cerebras_tensorflow.runtime.weight_store.memory import MemoryStore
from cerebras_tensorflow.runtime.weight_store.remote import ServerStore
from tests.unit.runtime.weight_store.test_remote import weight_servers

SPECS = (
    WeightSpec("a", "float32", (5, 3), 60),
    WeightSpec("b", "bfloat16", (4,), 8),
    WeightSpec("c", "float32", (), 4),
    WeightSpec("d", "float32", (512, 1024), 2 << 20),
    WeightSpec("no rows", "float32", (0, 4), 0),
    WeightSpec("no columns", "float32", (5, 0), 0),
)


@pytest.fixture(params=["memory", "mapped", "file", "file in spare memory", "servers"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WeightStore]:
    with ExitStack() as stack:
        make: dict[str, Callable[[], WeightStore]] = {
            "memory": lambda: MemoryStore(SPECS, is_shared=True),
            "mapped": lambda: MappedStore(SPECS, tmp_path / "store"),
            "file": lambda: FileStore(SPECS, tmp_path / "store"),
            "servers": lambda: ServerStore(SPECS, stack.enter_context(weight_servers(2))),
        }
        if request.param == "file in spare memory":
            monkeypatch.setattr(file, "_free_memory_bytes", lambda: 2 << 20)  # not for the largest weight
        opened = make[request.param.removesuffix(" in spare memory")]()
        yield opened
        opened.close()


def test_a_write_is_visible_at_once_and_after_a_flush(store: WeightStore) -> None:
    for number in range(20):
        value = np.full((5, 3), number, np.float32)
        store.write(0, value)
        np.testing.assert_array_equal(store.read(0), value)
    store.flush()
    np.testing.assert_array_equal(store.read(0), value)
    np.testing.assert_array_equal(store.read_private(0), value)


def test_every_reader_waits_for_the_write(store: WeightStore) -> None:
    with ThreadPoolExecutor(4) as readers:
        for number in range(30):
            store.write(3, np.full((512, 1024), number, np.float32))
            store.write(0, np.full((5, 3), number, np.float32))
            reads = [readers.submit(store.read, index) for index in (3, 0) * 3]
            rows = readers.submit(store.read_rows, 3, np.array([0, 511]))
            assert {value for read in (*reads, rows) for value in np.unique(read.result())} == {number}


@pytest.mark.parametrize("kind", ["file", "servers"])
def test_a_failed_background_write_is_raised_by_every_later_call(kind: str, tmp_path: Path) -> None:
    def fails(*_: object) -> None:
        raise MemoryError("no room")

    with ExitStack() as stack:
        store: WeightStore
        if kind == "file":
            store = FileStore(SPECS, tmp_path / "store")
            failing = store._blocks[0]
        else:
            store = ServerStore(SPECS, stack.enter_context(weight_servers(1)))
            failing = store._links[0]
        stack.callback(store.close)
        store.write(0, np.zeros((5, 3), np.float32))
        store.flush()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(failing, "write", fails, raising=True)
            store.write(0, np.ones((5, 3), np.float32))
            for use in (store.flush, store.snapshot, lambda: store.read(0)):
                with pytest.raises(StoreError, match="a write of a to the weight store failed: MemoryError: no room"):
                    use()


def test_dtype_and_shape_are_kept(store: WeightStore) -> None:
    import ml_dtypes

    store.write(1, np.arange(4).astype(ml_dtypes.bfloat16))
    store.write(2, np.array(7, np.float32))
    store.flush()
    assert store.read(1).dtype == ml_dtypes.bfloat16 and store.read(1).astype(int).tolist() == [0, 1, 2, 3]
    assert store.read(2).shape == () and store.read(2) == 7


@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_scalar_is_one_row(store: WeightStore, shape: tuple[int, ...]) -> None:
    store.write_slice(2, 0, np.full(shape, 7, np.float32))
    store.flush()
    for read in (store.read_slice, store.view_slice):
        np.testing.assert_array_equal(read(2, 0, 1), np.float32(7), strict=True)


def test_changing_a_private_copy_does_not_change_the_store(store: WeightStore) -> None:
    store.write(0, np.ones((5, 3), np.float32))
    store.read_private(0)[:] = 9
    np.testing.assert_array_equal(store.read(0), np.ones((5, 3)))


def test_rows_repeat_and_keep_the_shape_of_the_ids(store: WeightStore) -> None:
    value = np.arange(15, dtype=np.float32).reshape(5, 3)
    store.write(0, value)
    store.flush()
    ids = np.array([[4, 0], [4, 2]])
    np.testing.assert_array_equal(store.read_rows(0, ids), value[ids])
    assert store.read_rows(0, np.zeros((0,), np.int32)).shape == (0, 3)


def test_lent_rows_are_flat_and_can_be_written_back(store: WeightStore) -> None:
    value = np.arange(15, dtype=np.float32).reshape(5, 3)
    store.write(0, value)
    store.write(2, np.array(7, np.float32))
    for start, stop in ((0, 2), (2, 5)):
        lent = store.lend(0, start, stop)
        assert lent.shape == (3 * (stop - start) + 1,)
        np.testing.assert_array_equal(lent[:-1], value[start:stop].reshape(-1))
        lent[:-1] *= 2
        store.write_slice(0, start, lent[:-1].reshape(-1, 3))
    np.testing.assert_array_equal(store.read(0), 2 * value)
    store.write_slice(0, 1, np.zeros((2, 3), np.float32))  # bounds that no update has had
    np.testing.assert_array_equal(store.read(0)[[0, 3]], 2 * value[[0, 3]])
    np.testing.assert_array_equal(store.read_unchecked(0), store.read(0))
    assert store.read(2) == 7


def test_a_snapshot_keeps_values_when_lent_rows_are_overwritten(store: WeightStore) -> None:
    value = np.arange(15, dtype=np.float32).reshape(5, 3)
    store.write(0, value)
    snapshot = store.snapshot()
    lent = store.lend(0, 1, 4)
    lent[:-1] = -1
    store.write_slice(0, 1, lent[:-1].reshape(-1, 3))
    held = np.concatenate([piece.copy() for piece in snapshot.pieces(0)])
    np.testing.assert_array_equal(held.view(np.float32).reshape(5, 3), value)
    snapshot.close()
    np.testing.assert_array_equal(store.read(0)[1:4], np.full((3, 3), -1))


def test_weights_without_elements_can_be_stored(store: WeightStore) -> None:
    for index in (4, 5):
        value = np.zeros(SPECS[index].shape, np.float32)
        store.write(index, value)
        store.flush()
        assert store.read(index).shape == store.read_private(index).shape == value.shape
    assert store.read_rows(5, np.array([[4, 0]])).shape == (1, 2, 0)
    store.write_slice(5, 1, np.zeros((2, 0), np.float32))
    assert store.read_slice(5, 1, 3).shape == (2, 0)


@pytest.mark.parametrize("bad", [5, -1])
def test_a_row_out_of_range_names_the_weight_and_its_rows(store: WeightStore, bad: int) -> None:
    store.write(0, np.zeros((5, 3), np.float32))
    with pytest.raises(StoreError, match=rf"index {bad} is not in \[0, 5\), the rows of a"):
        store.read_rows(0, np.array([0, bad]))


def test_the_error_of_a_small_disk_says_how_much_is_needed(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"needs 1000000\.0 TB .* weight_store_dir"):
        FileStore([WeightSpec("huge", "float32", (1,), 10**18)], tmp_path)


def test_a_closed_file_store_leaves_nothing(tmp_path: Path) -> None:
    FileStore(SPECS, tmp_path / "store").close()
    assert list(tmp_path.iterdir()) == []
    FileStore(SPECS, tmp_path).close()
    assert list(tmp_path.iterdir()) == []


def test_spare_memory_keeps_the_weights_that_a_step_reads_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "_free_memory_bytes", lambda: 4 << 20)
    specs = [WeightSpec(name, "float32", (1 << 18,), 1 << 20) for name in "abcde"]
    reads = [1 << 20, 2 << 20, 0, 3 << 20, 1 << 20]
    store = FileStore(specs, tmp_path / "store", reads=reads)
    if not store.is_direct:
        store.close()
        pytest.skip("this file system has no O_DIRECT")
    assert store.cached_bytes == 2 << 20
    flags = [fcntl.fcntl(blocks.slots[0].file, fcntl.F_GETFL) & os.O_DIRECT for blocks in store._blocks]
    assert [not flag for flag in flags] == [False, True, False, True, False]
    places = [
        {slot.offset >> 21, (slot.offset + spec.num_bytes - 1) >> 21}
        for spec, blocks in zip(specs, store._blocks, strict=True)
        for slot in blocks.slots
    ]
    cached = set().union(*places[2:4], *places[6:8])  # of both slots
    assert not cached & set().union(*places[:2], *places[4:6], *places[8:])
    for turn in range(2):
        for index in range(len(specs)):
            store.write(index, np.full(1 << 18, 10 * turn + index, np.float32))
        store.drop_cache()
        for index in range(len(specs)):
            np.testing.assert_array_equal(store.read(index), np.full(1 << 18, 10 * turn + index, np.float32))
    store.close()
    assert store._folder._close_cached is not None and not store._folder._close_cached.alive
