"""The weight store in this process's memory: for the share of one of several CSX."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import numpy as np
from typing_extensions import override

from cerebras_tensorflow.graph.program import WeightSpec, dtype_from_name
from cerebras_tensorflow.runtime.weight_store.buffers import PAGE_BYTES, Bytes, aligned_buffer, private_copy
from cerebras_tensorflow.runtime.weight_store.failures import never_written
from cerebras_tensorflow.runtime.weight_store.interface import WeightStore, as_bytes, row_bytes, shaped
from cerebras_tensorflow.runtime.weight_store.shared_memory import SharedMemory
from cerebras_tensorflow.runtime.weight_store.snapshot import PIECE_BYTES, Lifetime, StoreSnapshot
from cerebras_tensorflow.runtime.weight_store.written_rows import WrittenRows, num_rows

LARGEST_ELEMENT_BYTES = 16  # of complex numbers
_COPIES = 4  # of each weight: its own, that of a snapshot, and those of earlier snapshots that a tensor still refers to
_SENT_BYTES = 256 << 20  # room for sums of gradients that other CSX take


class MemoryStore(WeightStore):
    """All weights in memory. A load is a view of it, and an update changes it in place, as in the mapped store.

    Other CSX may hold views of this memory too. So a write of a weight that they may have read must come after a
    barrier of all CSX, which ends their passes over the model (micro_batches/steps.py).

    Args:
        specs: The weights. The memory of each is taken at its first write.
        is_shared: Whether other CSX read the weights.

    Attributes:
        memory: The memory of the weights, which CSX on the same machine can read. None: no other CSX needs it, or the
            system refuses it.
    """

    def __init__(self, specs: Sequence[WeightSpec], is_shared: bool = False) -> None:
        super().__init__(specs)
        needed = sum(spec.num_bytes + LARGEST_ELEMENT_BYTES + PAGE_BYTES for spec in specs)
        self.memory = SharedMemory.create(_COPIES * needed + _SENT_BYTES) if is_shared else None
        self._values: dict[int, Bytes] = {}  # each with room for one more element
        self._held: dict[int, Bytes] = {}  # of the snapshot
        self._written = WrittenRows(specs)
        self._lifetime = Lifetime(self._values.clear)
        self._locks = [threading.Lock() for _ in specs]  # each for the writes of one weight

    @override
    def read(self, index: int) -> np.ndarray:
        return self.view_slice(index, 0, num_rows(self.specs[index]))

    @override
    def read_private(self, index: int) -> np.ndarray:
        return private_copy(self.read(index))

    @override
    def read_slice(self, index: int, start: int, stop: int) -> np.ndarray:
        # Copy: other ops may still read the old rows after the new ones are stored.
        return private_copy(self.view_slice(index, start, stop))

    @override
    def view_slice(self, index: int, start: int, stop: int) -> np.ndarray:
        spec, size = self.specs[index], row_bytes(self.specs[index])
        self._written.check(index, slice(start, stop))
        with self.moving("load", index, (stop - start) * size):
            return shaped(self._values[index][start * size : stop * size], spec, stop - start)

    @override
    def read_rows(self, index: int, rows: np.ndarray) -> np.ndarray:
        self._check_rows(index, rows)
        spec = self.specs[index]
        self._written.check(index, rows.reshape(-1))
        with self.moving("gather", index, rows.size * row_bytes(spec)):
            if not rows.size:
                return np.empty((*rows.shape, *spec.shape[1:]), shaped(np.empty(0, np.uint8), spec, 0).dtype)
            return np.asarray(shaped(self._values[index][: spec.num_bytes], spec, spec.shape[0])[rows])

    @override
    def lend(self, index: int, start: int, stop: int) -> np.ndarray:
        spec, size = self.specs[index], row_bytes(self.specs[index])
        with self.moving("load", index, (stop - start) * size), self._locks[index]:
            self._written.check(index, slice(start, stop))
            dtype = dtype_from_name(spec.dtype)
            return self._place(index)[start * size : stop * size + dtype.itemsize].view(dtype)

    @override
    def write_slice(self, index: int, start: int, value: np.ndarray) -> None:
        spec = self.specs[index]
        data, begin = as_bytes(np.ascontiguousarray(value)), start * row_bytes(spec)
        with self.moving("store", index, data.size), self._locks[index]:
            target = self._place(index)[begin : begin + data.size]
            if data.ctypes.data != target.ctypes.data:  # else the update has changed what was lent
                np.copyto(target, data)
        self._written.note(index, start, start + (len(value) if spec.shape else 1))

    def _place(self, index: int) -> Bytes:
        """Return the memory of a weight, to change it. What a snapshot holds is copied first."""
        place = self._values.get(index)
        if place is None or self._held.get(index) is place:
            size = self.specs[index].num_bytes + LARGEST_ELEMENT_BYTES
            fresh = None if self.memory is None else self.memory.take(size)
            if fresh is None:
                fresh = aligned_buffer(size)
            if place is not None:
                np.copyto(fresh, place)
            place = self._values[index] = fresh
        return place

    @override
    def between_steps(self) -> None:
        if self.memory is not None:  # a step may have used a weight of a snapshot for longer than the snapshot
            self.memory.trim(all_returned=False)

    @override
    def flush(self) -> None:
        """Do nothing: a write is complete when it returns."""

    @override
    def snapshot(self) -> StoreSnapshot:
        with self._lifetime.new_snapshot():
            complete = self._written.complete()
            self._held = {index: value for index, value in list(self._values.items()) if index in complete}
        return StoreSnapshot(self._pieces, self._release, self._end_snapshot)

    @property
    @override
    def snapshot_bytes(self) -> int:
        return sum(spec.num_bytes for spec in self.specs)

    @override
    def close(self) -> None:
        self._lifetime.close()

    def _pieces(self, index: int) -> Iterator[Bytes]:
        if index not in self._held:
            raise never_written(self.specs[index])
        value = self._held[index][: self.specs[index].num_bytes]
        for start in range(0, value.size, PIECE_BYTES):
            yield value[start : start + PIECE_BYTES]

    def _release(self, index: int) -> None:
        self._held.pop(index, None)
        self._trim()

    def _trim(self) -> None:
        if self.memory is not None:
            self.memory.trim(all_returned=True)

    def _end_snapshot(self) -> None:
        self._held = {}
        self._trim()
        self._lifetime.end_snapshot()
