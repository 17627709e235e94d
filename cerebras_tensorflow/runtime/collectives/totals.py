"""Completes the sums of a step across ranks: each rank adds a range of every sum, then all ranks get all ranges."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from cerebras_tensorflow.graph.micro_batches import EVERY
from cerebras_tensorflow.runtime.collectives.interface import Bytes, Collectives, split_evenly
from cerebras_tensorflow.runtime.collectives.shared_sums import SharedBuffers, SharedSums
from cerebras_tensorflow.runtime.collectives.sums import reduce_scatter
from cerebras_tensorflow.runtime.micro_batches.share import Across, Share
from cerebras_tensorflow.runtime.micro_batches.sums import divided, merged_rows
from cerebras_tensorflow.runtime.micro_batches.tree import absorbed
from cerebras_tensorflow.runtime.weight_store.buffers import Buffers

_TOGETHER_BYTES = 16 << 20  # small values up to this size travel together, larger ones in pieces
_SMALL_BYTES = 64 << 10
_SHARED_FROM_BYTES = 4 << 20  # from this size on, ranks of one machine read each other's sums in shared memory


class Totals(Across):
    """Completes the sums of a step.

    Args:
        ranks: The group of ranks.
        share: The micro-batches of this rank.
    """

    def __init__(self, ranks: Collectives, share: Share) -> None:
        self._ranks = ranks
        self._buffers = SharedBuffers()
        self._share = share
        self._shared: SharedSums | None = None
        self._has_joined = False
        self._groups = share.groups
        self._absorbed = absorbed([group for groups in self._groups for group in groups])

    @property
    def rank(self) -> int:
        """Number of this CSX."""
        return self._ranks.rank

    @property
    def buffers(self) -> Buffers:
        """Memory for sums. On one machine the other ranks can read it."""
        return self._buffers

    @property
    def num_csx(self) -> int:
        """Number of CSX."""
        return self._ranks.size

    def check(self) -> None:
        """Raise a CollectiveError if another rank is known to have failed."""
        self._ranks.check()

    def barrier(self) -> None:
        """Wait until every rank calls this."""
        self._ranks.barrier()

    def dense(self, sums: Sequence[Sequence[np.ndarray]], divisor: int) -> list[np.ndarray]:
        """Return the mean of each value: flat arrays, with the dtype of the sums."""
        if sum(value[0].nbytes for value in sums) >= _SHARED_FROM_BYTES:
            if not self._has_joined:
                self._shared = SharedSums.join(self._ranks, self._share, self._buffers)
                self._has_joined = True
            if self._shared is not None:
                return self._shared.means(sums, divisor)
        totals: list[np.ndarray] = []
        for together in _together(sums):
            own = [_flat([value[group] for value in together]) for group in range(len(together[0]))]
            total = self._mean(own, divisor)
            ends = np.cumsum([value[0].size for value in together])
            totals += np.split(total, ends[:-1])
        return totals

    def rows(
        self, sums: Sequence[tuple[np.ndarray, np.ndarray]], divisor: int, owner: int
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Return (values, rows) of the mean of a gradient of an embedding, from the sums of this rank's groups."""
        all_rows = self._gathered([rows for _, rows in sums], owner)
        all_values = self._gathered([values for values, _ in sums], owner)
        if owner not in (EVERY, self._ranks.rank):
            return None
        stack: list[tuple[np.ndarray, np.ndarray]] = []
        for result, taken in zip(zip(all_values, all_rows, strict=True), self._absorbed, strict=True):
            for _ in range(taken):
                result = merged_rows(stack.pop(), result)
            stack.append(result)
        values, rows = stack[0]
        return divided(values, divisor, np.empty_like(values)), rows

    def _mean(self, own: Sequence[np.ndarray], divisor: int) -> np.ndarray:
        """Return the mean of a flat value, from the sums of this rank's groups."""
        first = own[0]
        total = self._buffers.take(first.nbytes).view(first.dtype)
        step = _TOGETHER_BYTES // first.itemsize
        for start in range(0, first.size, step):
            piece = slice(start, start + step)
            self._mean_of_piece([value[piece] for value in own], divisor, total[piece])
        return total

    def _mean_of_piece(self, own: Sequence[np.ndarray], divisor: int, total: np.ndarray) -> None:
        """Write the mean of a part of a value into `total`."""
        if total.nbytes <= _SMALL_BYTES and len(self._absorbed) == self._ranks.size == 2:  # one exchange, no more bytes
            both = [np.empty_like(total), np.empty_like(total)]
            both[self._ranks.rank] = own[0]
            self._ranks.allgather([_bytes(value) for value in both])
            divided(np.add(both[0], both[1], out=total), divisor, total)
            return
        bounds = split_evenly(own[0].size, self._ranks.size)
        part = reduce_scatter(self._ranks, own, self._groups, bounds, self._buffers)
        first, after = bounds[self._ranks.rank], bounds[self._ranks.rank + 1]
        divided(part, divisor, total[first:after])
        as_bytes = total.view(np.uint8)
        size = total.itemsize
        self._ranks.allgather([as_bytes[begin * size : end * size] for begin, end in itertools.pairwise(bounds)])

    def _gathered(self, own: Sequence[np.ndarray], owner: int) -> list[np.ndarray]:
        """Return the arrays of all ranks, in the order of their groups. They differ only in dim 0.

        If they have an owner, the other ranks get nothing.
        """
        ranks = self._ranks
        lengths = [np.zeros(len(groups), np.int64) for groups in self._groups]
        lengths[ranks.rank][:] = [len(value) for value in own]
        ranks.allgather([length.view(np.uint8) for length in lengths])
        inner, dtype = own[0].shape[1:], own[0].dtype
        if owner not in (EVERY, ranks.rank):
            nothing = np.empty(0, np.uint8)
            mine = _bytes(np.concatenate(own))
            outgoing = [mine if rank == owner else nothing for rank in range(ranks.size)]
            ranks.exchange(outgoing, [nothing] * ranks.size)
            return []
        whole = [np.empty((int(length.sum()), *inner), dtype) for length in lengths]
        np.concatenate(own, out=whole[ranks.rank])
        places = [_bytes(value) for value in whole]
        if owner == EVERY:
            ranks.allgather(places)
        else:
            nothing = np.empty(0, np.uint8)
            ranks.exchange([place if rank == owner else nothing for rank, place in enumerate(places)], places)
        return [
            part
            for value, length in zip(whole, lengths, strict=True)
            for part in np.split(value, np.cumsum(length)[:-1])
        ]


def _together(sums: Sequence[Sequence[np.ndarray]]) -> Iterator[list[Sequence[np.ndarray]]]:
    """Yield consecutive values of one dtype that are small enough to travel together."""
    waiting: list[Sequence[np.ndarray]] = []
    num_bytes = 0
    for value in sums:
        first = value[0]
        if waiting and (waiting[0][0].dtype != first.dtype or num_bytes + first.nbytes > _TOGETHER_BYTES):
            yield waiting
            waiting, num_bytes = [], 0
        waiting.append(value)
        num_bytes += first.nbytes
    if waiting:
        yield waiting


def _flat(values: Sequence[np.ndarray]) -> np.ndarray:
    if len(values) == 1:
        return values[0].reshape(-1)
    return np.concatenate([value.reshape(-1) for value in values])


def _bytes(value: np.ndarray) -> Bytes:
    return value.reshape(-1).view(np.uint8)
