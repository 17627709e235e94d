"""Sums over micro-batches: memory, rows of an embedding, and the weight store give the bits of the tree."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from cerebras_tensorflow.graph.program import WeightSpec
from cerebras_tensorflow.runtime.micro_batches.sums import MemorySum, RowsSum, StoreSum, Sum
from cerebras_tensorflow.runtime.micro_batches.tree import absorbed, single
from cerebras_tensorflow.runtime.weight_store.buffers import Buffers
from cerebras_tensorflow.runtime.weight_store.file import FileStore

COUNTS = [2, 3, 5, 8]


def tree_sum(values: list[np.ndarray]) -> np.ndarray:
    """The documented sum, by recursion."""
    if len(values) == 1:
        return values[0]
    k = 1 << ((len(values) - 1).bit_length() - 1)
    return tree_sum(values[:k]) + tree_sum(values[k:])


def values_of(count: int, shape: tuple[int, ...] = (40, 3)) -> list[np.ndarray]:
    random = np.random.default_rng(count)
    return [(random.normal(size=shape) * 10.0 ** random.integers(-3, 3)).astype(np.float32) for _ in range(count)]


def add(total: Sum, values: list[tuple[np.ndarray, ...]]) -> None:
    count = len(values)
    for number, (value, taken) in enumerate(zip(values, absorbed(single(0, count)), strict=True)):
        total.add(value, taken, count if number == count - 1 else None)


@pytest.mark.parametrize("count", COUNTS)
def test_a_sum_in_memory_has_the_bits_of_the_tree_and_starts_again(count: int) -> None:
    total = MemorySum(Buffers())
    for _ in range(2):
        values = values_of(count)
        kept = [value.copy() for value in values]
        add(total, [(value,) for value in values])
        assert all(np.array_equal(*pair) for pair in zip(values, kept, strict=True)), "the values are not changed"
        assert total.take_total()[0].tobytes() == (tree_sum(values) / np.float32(count)).tobytes()
        assert total.take_total() == ()


def test_16_bit_floats_are_added_in_32_bits() -> None:
    values = [value.astype(ml_dtypes.bfloat16) for value in values_of(5)]
    total = MemorySum(Buffers())
    add(total, [(value,) for value in values])
    mean = tree_sum([value.astype(np.float32) for value in values]) / np.float32(5)
    (result,) = total.take_total()
    assert result.dtype == ml_dtypes.bfloat16
    assert result.tobytes() == mean.astype(ml_dtypes.bfloat16).tobytes()


@pytest.mark.parametrize("count", COUNTS)
def test_a_sum_in_the_store_has_the_bits_of_the_tree(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cerebras_tensorflow.runtime.micro_batches.sums._PIECE_BYTES", 7 * 12)  # 7 of 40 rows at a time
    places = count.bit_length() - 1
    store = FileStore([WeightSpec(str(index), "float32", (40, 3), 480) for index in range(1 + places)], tmp_path)
    try:
        total = StoreSum(store, 0, range(1, 1 + places))
        for _ in range(2):
            values = values_of(count)
            add(total, [(value,) for value in values])
            assert store.read(0).tobytes() == (tree_sum(values) / np.float32(count)).tobytes()
    finally:
        store.close()


@pytest.mark.parametrize("count", COUNTS)
def test_a_sum_of_rows_has_the_bits_of_the_tree_for_each_row(count: int) -> None:
    random = np.random.default_rng(count)
    given = [(value, random.integers(0, 12, 40)) for value in values_of(count)]
    total = RowsSum()
    add(total, given)
    values, rows = total.take_total()
    assert list(rows) == sorted({int(row) for _, taken in given for row in taken})
    for row, value in zip(rows, values, strict=True):
        own = {
            number: np.add.reduce(part[taken == row], axis=0)
            for number, (part, taken) in enumerate(given)
            if row in taken
        }
        expected = sparse_tree_sum(own, 0, count)
        assert expected is not None
        assert value.tobytes() == (expected / np.float32(count)).tobytes()


def sparse_tree_sum(own: dict[int, np.ndarray], first: int, count: int) -> np.ndarray | None:
    """The sum of one row, which not every micro-batch has."""
    if count == 1:
        return own.get(first)
    k = 1 << ((count - 1).bit_length() - 1)
    left, right = sparse_tree_sum(own, first, k), sparse_tree_sum(own, first + k, count - k)
    if left is None or right is None:
        return right if left is None else left
    return left + right


def test_a_batch_without_rows_adds_nothing() -> None:
    total = RowsSum()
    some = (np.ones((2, 3), np.float32), np.array([4, 4]))
    add(total, [some, (np.zeros((0, 3), np.float32), np.zeros(0, np.int64))])
    values, rows = total.take_total()
    assert rows.tolist() == [4]
    assert values.tolist() == [[1.0, 1.0, 1.0]]
