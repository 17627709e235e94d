"""Sums that leave this CSX during its last micro-batch of a step, as soon as each is final.

One CSX adds the sums of all CSX (runtime/csx/arrivals.py). Until its last micro-batch, a CSX adds up its own
micro-batches in its store, if it has several.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from cerebras_tensorflow.graph.micro_batches import Gradient, sum_dtype
from cerebras_tensorflow.graph.program import dtype_from_name
from cerebras_tensorflow.runtime.micro_batches.share import Across, Share
from cerebras_tensorflow.runtime.micro_batches.sums import StoreSum, Sum
from cerebras_tensorflow.runtime.weight_store.buffers import Buffers
from cerebras_tensorflow.runtime.weight_store.interface import WeightStore


@dataclass(frozen=True)
class Part:
    """Rows of the sum of one group of micro-batches.

    Attributes:
        group: Number of the group, among the groups of all CSX.
        start: The first row.
        value: The rows, in the dtype of the sum.
        is_private: Whether the receiver may keep and change the memory of the value.
    """

    group: int
    start: int
    value: np.ndarray
    is_private: bool


class SumSender(Protocol):
    """Sends sums to the CSX that add them, in a thread of its own."""

    def queue(self, gradient: Gradient, parts: Iterator[Part], num_bytes: int) -> None:
        """Queue the sums of a gradient. Wait while too many bytes are queued.

        Args:
            gradient: The gradient.
            parts: Its rows; for the same rows the groups are in ascending order. Taken in the thread.
            num_bytes: Bytes that they hold in memory until they are sent.

        Raises:
            CollectiveError: If another CSX failed.
            StoreError: If the store failed.
        """

    def finish(self) -> None:
        """Wait until this CSX has sent all its sums, and has all totals that its update takes.

        Raises:
            CollectiveError: If another CSX failed.
            StoreError: If the store failed.
        """


@runtime_checkable
class HasSums(Protocol):
    """A weight store that sends sums to other CSX."""

    sums: SumSender


class StreamedSum(Sum):
    """The sum of one gradient, which this CSX sends to the CSX that adds it.

    Args:
        gradient: The gradient. Its total is in the store.
        store: The store.
        sender: Sends sums.
        share: The micro-batches of this CSX.
    """

    def __init__(self, gradient: Gradient, store: WeightStore, sender: SumSender, share: Share) -> None:
        assert gradient.stored is not None, "a sum in host memory is added after the last micro-batch"
        self._gradient = gradient
        self._store = store
        self._sender = sender
        self._dtype = dtype_from_name(sum_dtype(gradient.dtype))
        self._own = StoreSum(store, gradient.stored, gradient.partials)
        self._first_group = sum(map(len, share.groups[: share.rank]))
        self._num_left = self._size = share.size
        self._buffers = Buffers()

    def add(self, value: Sequence[np.ndarray], absorbed: int, divisor: int | None) -> None:
        """Add the value of the next micro-batch: one array, which does not change before `complete`."""
        assert divisor is None, "the CSX that adds the sums divides them"
        self._num_left -= 1
        if self._num_left:
            self._own.add(value, absorbed, None)
            return
        given = np.asarray(value[0])
        depth = self._own.depth
        earlier, taken = self._gradient.partials[: depth - absorbed], self._gradient.partials[depth - absorbed : depth]
        self._sender.queue(self._gradient, self._parts(given, earlier, taken), given.nbytes)

    def complete(self, across: Across, divisor: int) -> None:
        """Do nothing: `SumSender.finish` waits for the totals of all gradients."""

    def take_total(self) -> tuple[np.ndarray, ...]:
        """Start again. The total is in the store."""
        self._own.take_total()
        self._num_left = self._size
        return ()

    def _parts(self, given: np.ndarray, earlier: Sequence[int], taken: Sequence[int]) -> Iterator[Part]:
        """Yield the sums of all groups of this CSX, a few rows at a time.

        Args:
            given: The gradient of the last micro-batch.
            earlier: Indices of the sums of complete groups.
            taken: Indices of the sums to add to the last one.
        """
        for start, stop in self._own.pieces():
            for number, index in enumerate(earlier):
                value = self._store.read_slice(index, start, stop)
                yield Part(self._first_group + number, start, value, is_private=False)
            group = self._first_group + len(earlier)
            rows = given[start:stop] if given.ndim else given
            if not taken and rows.dtype == self._dtype and rows.flags.c_contiguous:
                yield Part(group, start, rows, is_private=False)
                continue
            piece = self._buffers.take(rows.size * self._dtype.itemsize).view(self._dtype).reshape(rows.shape)
            np.copyto(piece, rows)
            for index in reversed(taken):
                np.add(self._store.read_slice(index, start, stop), piece, out=piece)
            yield Part(group, start, piece, is_private=True)
