"""Sparse weights move without their zeros, and come back with every bit."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from cerebras_tensorflow.graph.program import WeightSpec
from cerebras_tensorflow.runtime.weight_store import blocks
from cerebras_tensorflow.runtime.weight_store.file import FileStore
from cerebras_tensorflow.runtime.weight_store.packing import pack, packed_bytes, unpack
from cerebras_tensorflow.runtime.weight_store.traffic import Traffic

ROWS, COLUMNS = 700, 1000  # 2.8 MB of float32: three packs, the last one cut


def sparse(random: np.random.Generator, shape: tuple[int, ...], sparsity: float, dtype: str = "float32") -> np.ndarray:
    value = random.normal(size=shape).astype(np.float32)
    value[random.random(shape) < sparsity] = 0
    return value.astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "bool"])
@pytest.mark.parametrize("sparsity", [0.5, 0.9, 1.0])
def test_every_bit_comes_back(dtype: str, sparsity: float) -> None:
    value = sparse(np.random.default_rng(0), (4096,), sparsity, dtype)
    if dtype.startswith("float"):
        value[::5], value[1], value[2] = -0.0, np.nan, np.finfo(dtype).tiny / 4
    piece = value.view(np.uint8)
    packed = pack(piece, value.itemsize)
    assert packed is not None
    assert packed.size < piece.size * 0.76
    result = np.full_like(piece, 255)
    unpack(packed, result, value.itemsize)
    assert result.tobytes() == piece.tobytes()


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_mask_moves_as_bits(share: float) -> None:
    piece = (np.random.default_rng(0).random(140_000) < share).view(np.uint8)
    packed = pack(piece, 1, 0.4)
    assert packed is not None
    assert packed.size == packed_bytes(packed, piece.size, 1) == piece.size // 8 + 8
    result = np.full_like(piece, 255)
    unpack(packed, result, 1)
    np.testing.assert_array_equal(result, piece)


def test_bytes_other_than_0_and_1_come_back() -> None:
    piece = np.where(np.arange(4096) % 5, 0, 255).astype(np.uint8)
    packed = pack(piece, 1)
    assert packed is not None
    result = np.ones_like(piece)
    unpack(packed, result, 1)
    np.testing.assert_array_equal(result, piece)


def test_dense_pieces_are_not_packed() -> None:
    assert pack(sparse(np.random.default_rng(0), (4096,), 0.2).view(np.uint8), 4) is None


def test_a_fast_disk_is_worth_less_packing() -> None:
    """Packed bytes that a disk of 2 GB/s or 10 GB/s makes worth 0.1 s of packing a gigabyte."""
    shares = {}
    for disk_s in (0.5, 0.1):
        traffic = Traffic()
        assert traffic.most_packed_share == 0.75  # nothing is known
        with mock.patch("time.perf_counter", side_effect=[0.0, disk_s]), traffic.reading(10**9):
            pass
        with mock.patch("time.thread_time", return_value=0.1):
            traffic.count_packing(10**9, 0.0)
        shares[disk_s] = traffic.most_packed_share
    assert shares == {0.5: pytest.approx(0.6), 0.1: 0.4}
    assert traffic.bytes_read == 10**9
    half = sparse(np.random.default_rng(0), (4096,), 0.5).view(np.uint8)
    assert pack(half, 4, shares[0.5]) is not None
    assert pack(half, 4, shares[0.1]) is None


def test_a_sparse_weight_moves_few_bytes(tmp_path: Path) -> None:
    moved = {}
    for sparsity in (0.0, 0.9):
        value = sparse(np.random.default_rng(0), (ROWS, COLUMNS), sparsity)
        store = FileStore([WeightSpec("w", "float32", value.shape, value.nbytes)], tmp_path / str(sparsity))
        store.write(0, value)
        np.testing.assert_array_equal(store.read(0), value)
        moved[sparsity] = sum(store.file_bytes)
        store.close()
    assert moved[0.9] * 6 < moved[0.0]


def test_any_order_of_writes_reads_and_snapshots(tmp_path: Path) -> None:
    """Random slices, dense and sparse, against an array; a snapshot keeps its content meanwhile."""
    random = np.random.default_rng(3)
    expected = sparse(random, (ROWS, COLUMNS), 0.9)
    store = FileStore([WeightSpec("w", "float32", expected.shape, expected.nbytes)], tmp_path)
    store.write(0, expected)
    for number in range(12):
        kept, snapshot = expected.copy(), store.snapshot() if number % 3 else None
        for _ in range(4):
            start, stop = np.sort(random.choice(ROWS + 1, 2, replace=False))
            if random.random() < 0.3:
                start, stop = 0, ROWS
            expected[start:stop] = sparse(random, (stop - start, COLUMNS), random.choice([0.0, 0.5, 0.9, 1.0]))
            store.write_slice(0, int(start), expected[start:stop].copy())
            low, high = np.sort(random.choice(ROWS + 1, 2, replace=False))
            np.testing.assert_array_equal(store.read_slice(0, int(low), int(high)), expected[low:high])
        rows = random.integers(0, ROWS, 5)
        np.testing.assert_array_equal(store.read_rows(0, rows), expected[rows])
        if snapshot is not None:
            assert b"".join(piece.tobytes() for piece in snapshot.pieces(0)) == kept.tobytes()
            snapshot.close()
    store.close()


def test_a_read_beside_a_write_of_the_same_pack_waits_for_it(tmp_path: Path) -> None:
    """The write of one slice changes a whole pack of zeros, so the read of another slice finds other bytes."""
    store = FileStore([WeightSpec("w", "float32", (ROWS, COLUMNS), 4 * ROWS * COLUMNS)], tmp_path)
    store.write(0, np.zeros((ROWS, COLUMNS), np.float32))
    store.flush()
    is_written, may_end = threading.Event(), threading.Event()
    drain, wait_for = blocks._drain, store._writes.wait_for

    def drain_and_stop(*arguments: Any) -> None:
        drain(*arguments)
        is_written.set()
        assert may_end.wait(60)

    def wait_for_a_write(index: int, start: int, stop: int) -> bool:
        if any(write.touches(index, start, stop) for write in store._writes._pending[0]):
            may_end.set()
        return wait_for(index, start, stop)

    with mock.patch.object(blocks, "_drain", drain_and_stop):
        store.write_slice(0, 0, np.ones((10, COLUMNS), np.float32))
        assert is_written.wait(60)
        with mock.patch.object(store._writes, "wait_for", wait_for_a_write):
            try:
                assert not store.read_slice(0, 100, 110).any()
            finally:
                may_end.set()
    store.close()
