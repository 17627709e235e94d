"""Completes large sums across ranks of one machine: each rank reads the sums of the others where they are.

Each rank adds a range of every sum, straight from the memory of all, and then copies the ranges of the others. Only
places, the lengths of which do not depend on the sums, go through the group.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from cerebras_tensorflow.runtime.collectives.interface import Collectives, split_evenly
from cerebras_tensorflow.runtime.micro_batches.share import Share
from cerebras_tensorflow.runtime.micro_batches.sums import divided
from cerebras_tensorflow.runtime.micro_batches.tree import absorbed
from cerebras_tensorflow.runtime.weight_store.buffers import Buffers, Bytes
from cerebras_tensorflow.runtime.weight_store.shared_memory import SharedMemory, Window

_CHUNK_BYTES = 128 << 10  # a few of these fit into a core's own cache
_ABOUT_BYTES = 512


class SharedBuffers(Buffers):
    """Buffers in memory that other processes can read, as long as there is room."""

    @cached_property
    def memory(self) -> SharedMemory | None:
        """The memory; None if the system refuses it."""
        physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return SharedMemory.create(physical, max_idle_bytes=physical)  # one step's sums serve the next step

    def offset_of(self, value: np.ndarray) -> int | None:
        """Return where an array is in the memory; None if it is elsewhere."""
        return None if self.memory is None else self.memory.offset_of(value)

    def take(self, num_bytes: int) -> np.ndarray:
        """Return uninitialised bytes that start at a page boundary: shape (num_bytes,), uint8."""
        place = None if self.memory is None else self.memory.take(num_bytes)
        return super().take(num_bytes) if place is None else place

    def close(self) -> None:
        """Free the memory when no array refers to it any more."""
        super().close()
        self.__dict__.pop("memory", None)


class SharedSums:
    """Completes sums.

    Args:
        ranks: The group of ranks.
        share: The micro-batches of this rank.
        buffers: The memory of this rank.
        windows: That of each rank; None for this one.
    """

    def __init__(
        self, ranks: Collectives, share: Share, buffers: SharedBuffers, windows: Sequence[Window | None]
    ) -> None:
        self._ranks = ranks
        self._groups = [len(groups) for groups in share.groups]
        self._absorbed = absorbed([group for groups in share.groups for group in groups])
        self._buffers = buffers
        self._windows = windows

    @classmethod
    def join(cls, ranks: Collectives, share: Share, buffers: SharedBuffers) -> SharedSums | None:
        """Open the memory of all ranks; None if one of them cannot open all. Every rank calls this.

        Raises:
            CollectiveError: If a rank failed.
        """
        own = b"null" if buffers.memory is None else json.dumps(buffers.memory.about()).encode()
        abouts = [np.zeros(_ABOUT_BYTES, np.uint8) for _ in range(ranks.size)]
        abouts[ranks.rank][: len(own)] = np.frombuffer(own, np.uint8)
        ranks.allgather(abouts)
        windows = [
            None if rank == ranks.rank or about is None else Window.open(about)
            for rank, about in enumerate(json.loads(about.tobytes().rstrip(b"\0")) for about in abouts)
        ]
        can = [np.zeros(1, np.uint8) for _ in range(ranks.size)]
        can[ranks.rank][0] = sum(window is None for window in windows) == 1
        ranks.allgather(can)
        return cls(ranks, share, buffers, windows) if all(one[0] for one in can) else None

    def means(self, sums: Sequence[Sequence[np.ndarray]], divisor: int) -> list[np.ndarray]:
        """Return the mean of each value: flat arrays, with the dtype of the sums.

        Args:
            sums: For each value, this rank's sums, one for each of its groups.
            divisor: Number of micro-batches of a step.

        Raises:
            CollectiveError: If a rank failed.
            MemoryError: If there is no room for the sums.
        """
        bounds = [split_evenly(value[0].size, self._ranks.size) for value in sums]
        flat = [[one.reshape(-1) for one in value] for value in sums]
        placed = [[self._placed(one, bound) for one in value] for value, bound in zip(flat, bounds, strict=True)]
        places = self._gathered([[self._offset(one) for one in value] for value in placed], self._groups)
        totals = [self._buffers.take(one[0].nbytes).view(one[0].dtype) for one in flat]
        me = self._ranks.rank
        for number, total in enumerate(totals):
            first, after = bounds[number][me], bounds[number][me + 1]
            parts = []
            for rank, offsets in enumerate(places):
                own = [one[first:after] for one in flat[number]]
                parts += own if rank == me else [self._part(rank, at, total, first, after) for at in offsets[number]]
            self._add(parts, divisor, total[first:after])
        ends = self._gathered([[self._offset(total)] for total in totals], [1] * self._ranks.size)
        for number, total in enumerate(totals):
            for rank, offsets in enumerate(ends):
                first, after = bounds[number][rank], bounds[number][rank + 1]
                if rank != me:
                    np.copyto(total[first:after], self._part(rank, offsets[number][0], total, first, after))
        self._ranks.barrier()  # from here on this rank's memory may change
        self._count(flat, bounds)
        return totals

    def _placed(self, value: np.ndarray, bounds: Sequence[int]) -> np.ndarray:
        """Return a flat value in this rank's shared memory. A copy has only what other ranks read."""
        if self._buffers.offset_of(value) is not None:
            return value
        copy = self._buffers.take(value.nbytes).view(value.dtype)
        for part in (slice(bounds[self._ranks.rank]), slice(bounds[self._ranks.rank + 1], None)):
            np.copyto(copy[part], value[part])
        return copy

    def _offset(self, value: np.ndarray) -> int:
        offset = self._buffers.offset_of(value)
        if offset is None:
            raise MemoryError(f"no shared memory for {value.nbytes} B of sums of gradients")
        return offset

    def _gathered(self, own: Sequence[Sequence[int]], counts: Sequence[int]) -> list[list[list[int]]]:
        """Return the numbers of all ranks, by rank and value; a rank has as many for each value as it has sums."""
        tables = [np.zeros((len(own), count), np.int64) for count in counts]
        tables[self._ranks.rank][:] = own
        self._ranks.allgather([table.reshape(-1).view(np.uint8) for table in tables])
        return [table.tolist() for table in tables]

    def _part(self, rank: int, offset: int, like: np.ndarray, first: int, after: int) -> np.ndarray:
        """Return elements of a value in the memory of another rank."""
        window = self._windows[rank]
        assert window is not None, "this rank needs no window onto its own memory"
        size = like.itemsize
        part: Bytes = window.view(offset + first * size, (after - first) * size)
        return part.view(like.dtype)

    def _add(self, parts: Sequence[np.ndarray], divisor: int, total: np.ndarray) -> None:
        """Add the sums of all groups in the order of the tree, and divide: a few elements at a time."""
        step = _CHUNK_BYTES // total.itemsize
        rooms = [np.empty(step, total.dtype) for _ in parts]
        for start in range(0, total.size, step):
            stop = min(start + step, total.size)
            stack: list[np.ndarray] = []
            for part, taken in zip(parts, self._absorbed, strict=True):
                value = part[start:stop]
                for _ in range(taken):
                    earlier = stack.pop()
                    value = np.add(earlier, value, out=rooms[len(stack)][: stop - start])
                stack.append(value)
            divided(stack[0], divisor, total[start:stop])

    def _count(self, values: Sequence[Sequence[np.ndarray]], bounds: Sequence[Sequence[int]]) -> None:
        """Count the bytes that ranks have taken from each other's memory."""
        me, others = self._ranks.rank, self._ranks.size - 1
        for value, bound in zip(values, bounds, strict=True):
            whole, own = value[0].nbytes, (bound[me + 1] - bound[me]) * value[0].itemsize
            self._ranks.bytes_sent += (whole - own) * self._groups[me] + own * others
            self._ranks.bytes_received += own * (sum(self._groups) - self._groups[me]) + whole - own
