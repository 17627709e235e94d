"""Sums over micro-batches, in the order of tree.py: in host memory, of rows of an embedding, or in the weight store.

The sum of 16-bit floats is computed in float32. At the end it is divided by the number of micro-batches, and converted
back to the dtype of the values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager

import numpy as np

from cerebras_tensorflow.graph.micro_batches import EVERY, sum_dtype
from cerebras_tensorflow.graph.program import WeightSpec, dtype_from_name
from cerebras_tensorflow.runtime.micro_batches.share import Across
from cerebras_tensorflow.runtime.weight_store.buffers import Buffers
from cerebras_tensorflow.runtime.weight_store.interface import WeightStore, row_bytes
from cerebras_tensorflow.runtime.weight_store.written_rows import num_rows

_PIECE_BYTES = 4 << 20


class Sum(ABC):
    """The sum of one value over the micro-batches of a step."""

    @abstractmethod
    def add(self, value: Sequence[np.ndarray], absorbed: int, divisor: int | None) -> None:
        """Add the value of the next micro-batch.

        Args:
            value: Its arrays. They may change after this call.
            absorbed: Number of earlier partial sums to add to it, from tree.py.
            divisor: Number of micro-batches, if this is the last one of the step.
        """

    @abstractmethod
    def complete(self, across: Across, divisor: int) -> None:
        """Make the total from the partial sums of all CSX.

        Args:
            across: Gets the sums of the other CSX.
            divisor: Number of micro-batches of the step.
        """

    @abstractmethod
    def take_total(self) -> tuple[np.ndarray, ...]:
        """Return the arrays of the total and start again; empty if the total is in the store."""


class MemorySum(Sum):
    """A sum in host memory.

    Args:
        buffers: Provides memory, and reuses it when no array refers to it.
    """

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self._partials: list[np.ndarray] = []
        self._total: tuple[np.ndarray, ...] = ()
        self._dtype = np.dtype(np.float32)  # of the values

    def add(self, value: Sequence[np.ndarray], absorbed: int, divisor: int | None) -> None:
        """Add the value of the next micro-batch: one array."""
        given = np.asarray(value[0])
        self._dtype = given.dtype
        result = given
        for _ in range(absorbed):
            partial = self._partials.pop()
            np.add(partial, result, out=partial)
            result = partial
        if divisor is not None:
            self._total = (divided(result, divisor, self._new(result)).astype(given.dtype, copy=False),)
        else:
            self._partials.append(result if absorbed else self._copy(given))

    def complete(self, across: Across, divisor: int) -> None:
        """Make the total from the partial sums of all CSX."""
        complete_in_memory([self], across, divisor)

    def take_partials(self) -> list[np.ndarray]:
        """Return the partial sums of this CSX, in the order of their groups."""
        partials, self._partials = self._partials, []
        return partials

    def set_total(self, total: np.ndarray) -> None:
        """Set the total, in the dtype of the sum."""
        self._total = (total.astype(self._dtype, copy=False),)

    def take_total(self) -> tuple[np.ndarray, ...]:
        """Return the total and start again."""
        total, self._total = self._total, ()
        self._partials.clear()
        return total

    def _copy(self, value: np.ndarray) -> np.ndarray:
        """Return a copy in the dtype of the sum."""
        copy = self._new(value)
        np.copyto(copy, value)
        return copy

    def _new(self, like: np.ndarray) -> np.ndarray:
        dtype = dtype_from_name(sum_dtype(like.dtype.name))
        return self._buffers.take(like.size * dtype.itemsize).view(dtype).reshape(like.shape)


def complete_in_memory(sums: Sequence[MemorySum], across: Across, divisor: int) -> None:
    """Make the totals of several sums in host memory. Together they take few messages."""
    partials = [one.take_partials() for one in sums]
    shapes = [parts[0].shape for parts in partials]
    totals = across.dense(partials, divisor)
    for one, total, shape in zip(sums, totals, shapes, strict=True):
        one.set_total(total.reshape(shape))


class RowsSum(Sum):
    """The sum of gradients of an embedding. Each micro-batch has gradients of some rows; arrays are (values, rows).

    If a row repeats in a micro-batch, its values are first added in their order. The total has each row once, in
    ascending order.

    Args:
        owner: The CSX that gets the total, or EVERY.
    """

    def __init__(self, owner: int = EVERY) -> None:
        self._owner = owner
        self._partials: list[tuple[np.ndarray, np.ndarray]] = []
        self._total: tuple[np.ndarray, ...] = ()
        self._dtype = np.dtype(np.float32)  # of the values

    def add(self, value: Sequence[np.ndarray], absorbed: int, divisor: int | None) -> None:
        """Add the rows of the next micro-batch."""
        values, rows = value
        self._dtype = values.dtype
        result = _distinct(np.asarray(values), np.asarray(rows))
        for _ in range(absorbed):
            result = merged_rows(self._partials.pop(), result)
        if divisor is not None:
            self._total = (divided(result[0], divisor, result[0]).astype(values.dtype, copy=False), result[1])
        else:
            self._partials.append(result)

    def complete(self, across: Across, divisor: int) -> None:
        """Make the total from the partial sums of all CSX."""
        total = across.rows(self._partials, divisor, self._owner)
        self._partials = []
        if total is not None:
            values, rows = total
            self._total = (values.astype(self._dtype, copy=False), rows)

    def take_total(self) -> tuple[np.ndarray, ...]:
        """Return (values, rows) of the total and start again."""
        total, self._total = self._total, ()
        self._partials.clear()
        return total


class StoreSum(Sum):
    """A sum in the weight store. Only a few rows at a time are in memory.

    Args:
        store: The store.
        total: Index of the total.
        partials: Indices of the partial sums.
    """

    def __init__(self, store: WeightStore, total: int, partials: Sequence[int]) -> None:
        self._store = store
        self._total = total
        self._partials = list(partials)
        self._depth = 0

    @property
    def depth(self) -> int:
        """Number of partial sums now."""
        return self._depth

    def add(self, value: Sequence[np.ndarray], absorbed: int, divisor: int | None) -> None:
        """Add the value of the next micro-batch: one array."""
        given = np.asarray(value[0])
        spec = self._store.specs[self._total]
        dtype = dtype_from_name(sum_dtype(spec.dtype))
        taken = self._partials[self._depth - absorbed : self._depth][::-1]
        self._depth -= absorbed
        place = self._total if divisor is not None else self._partials[self._depth]
        for start, stop in pieces_of(spec):
            piece = given[start:stop].astype(dtype)  # a copy: the store may keep it
            for index in taken:
                np.add(self._store.read_slice(index, start, stop), piece, out=piece)
            if divisor is not None:
                piece = divided(piece, divisor, piece).astype(given.dtype, copy=False)
            self._store.write_slice(place, start, piece)
        self._depth = 0 if divisor is not None else self._depth + 1

    def complete(self, across: Across, divisor: int) -> None:
        """Make the total from the partial sums of all CSX, a few rows at a time."""
        for start, stop in self.pieces():
            own = self.partials(start, stop)
            with self.exchanging(sum(value.nbytes for value in own)):
                (mean,) = across.dense([own], divisor)
            self.set_rows(start, stop, mean)
        self._depth = 0

    def pieces(self) -> list[tuple[int, int]]:
        """Return the bounds of consecutive rows."""
        return pieces_of(self._store.specs[self._total])

    def partials(self, start: int, stop: int) -> list[np.ndarray]:
        """Return rows of the partial sums of this CSX, in the order of their groups."""
        return [self._store.read_slice(index, start, stop) for index in self._partials[: self._depth]]

    def exchanging(self, num_bytes: int) -> AbstractContextManager[None]:
        """Report an exchange of sums to the store, which a trace may watch."""
        return self._store.moving("exchange", self._total, num_bytes)

    def set_rows(self, start: int, stop: int, mean: np.ndarray) -> None:
        """Set rows of the total, from a flat array in the dtype of the sum."""
        spec = self._store.specs[self._total]
        shape = (stop - start, *spec.shape[1:]) if spec.shape else ()
        self._store.write_slice(self._total, start, mean.astype(dtype_from_name(spec.dtype), copy=False).reshape(shape))

    def take_total(self) -> tuple[np.ndarray, ...]:
        """Start again. The total is in the store."""
        self._depth = 0
        return ()


def pieces_of(spec: WeightSpec) -> list[tuple[int, int]]:
    """Return the bounds of the rows of a sum that are in memory at a time."""
    step = max(1, _PIECE_BYTES // max(1, row_bytes(spec)))
    return [(start, min(start + step, num_rows(spec))) for start in range(0, num_rows(spec), step)]


def divided(total: np.ndarray, divisor: int, out: np.ndarray) -> np.ndarray:
    """Return total / divisor, in the memory of `out`."""
    return np.divide(total, np.asarray(divisor, total.dtype), out=out)


def _distinct(values: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sum of the values of each row, in the order of the values, and the rows, ascending."""
    order = np.argsort(rows, kind="stable")
    names, first, counts = np.unique(rows[order], return_index=True, return_counts=True)
    summed = values[order].astype(dtype_from_name(sum_dtype(values.dtype.name)), copy=False)
    result = summed[first]
    for number in range(1, int(counts.max(initial=0))):  # NumPy's sum functions may add in another order
        has_more = counts > number
        result[has_more] += summed[first[has_more] + number]
    return result, names


def merged_rows(
    left: tuple[np.ndarray, np.ndarray], right: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return the sum of two sums of rows."""
    rows = np.union1d(left[1], right[1])
    result = np.empty((len(rows), *left[0].shape[1:]), left[0].dtype)
    result[np.searchsorted(rows, left[1])] = left[0]
    is_in_both = np.isin(right[1], left[1])
    places = np.searchsorted(rows, right[1])
    result[places[~is_in_both]] = right[0][~is_in_both]
    result[places[is_in_both]] += right[0][is_in_both]
    return result, rows
