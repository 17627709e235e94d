"""The weight store in this process's memory: for the share of one of several CSX."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import numpy as np
from typing_extensions import override

from cerebras_tensorflow.graph.program import WeightSpec
from cerebras_tensorflow.runtime.weight_store.buffers import Buffers, Bytes, aligned_buffer
from cerebras_tensorflow.runtime.weight_store.failures import never_written
from cerebras_tensorflow.runtime.weight_store.interface import WeightStore, as_bytes, row_bytes, shaped
from cerebras_tensorflow.runtime.weight_store.snapshot import PIECE_BYTES, Lifetime, StoreSnapshot
from cerebras_tensorflow.runtime.weight_store.written_rows import WrittenRows


class MemoryStore(WeightStore):
    """All weights in memory. A read returns a copy, because a later write changes the weight in place.

    Args:
        specs: The weights. The memory of each is taken at its first write.
    """

    def __init__(self, specs: Sequence[WeightSpec]) -> None:
        super().__init__(specs)
        self._values: dict[int, Bytes] = {}
        self._held: dict[int, Bytes] = {}  # of the snapshot
        self._written = WrittenRows(specs)
        self._buffers = Buffers()
        self._lifetime = Lifetime(self._free)
        self._lock = threading.Lock()

    @override
    def read_slice(self, index: int, start: int, stop: int) -> np.ndarray:
        spec, size = self.specs[index], row_bytes(self.specs[index])
        self._written.check(index, slice(start, stop))
        with self.moving("load", index, (stop - start) * size):
            values = self._buffers.take((stop - start) * size)
            np.copyto(values, self._values[index][start * size : stop * size])
        return shaped(values, spec, stop - start)

    @override
    def read_rows(self, index: int, rows: np.ndarray) -> np.ndarray:
        self._check_rows(index, rows)
        spec = self.specs[index]
        self._written.check(index, rows.reshape(-1))
        with self.moving("gather", index, rows.size * row_bytes(spec)):
            if not rows.size:
                return np.empty((*rows.shape, *spec.shape[1:]), shaped(np.empty(0, np.uint8), spec, 0).dtype)
            return np.asarray(shaped(self._values[index], spec, spec.shape[0])[rows])

    @override
    def write_slice(self, index: int, start: int, value: np.ndarray) -> None:
        spec = self.specs[index]
        data, begin = as_bytes(np.ascontiguousarray(value)), start * row_bytes(spec)
        with self.moving("store", index, data.size), self._lock:
            place = self._values.get(index)
            if place is None or self._held.get(index) is place:  # keep the snapshot's array
                fresh = aligned_buffer(spec.num_bytes)
                if place is not None and data.size < spec.num_bytes:
                    np.copyto(fresh, place)
                place = self._values[index] = fresh
            place[begin : begin + data.size] = data
        self._written.note(index, start, start + (len(value) if spec.shape else 1))

    @override
    def flush(self) -> None:
        """Do nothing: a write is complete when it returns."""

    @override
    def snapshot(self) -> StoreSnapshot:
        with self._lifetime.new_snapshot():
            complete = self._written.complete()
            with self._lock:
                self._held = {index: value for index, value in self._values.items() if index in complete}
        return StoreSnapshot(self._pieces, lambda index: self._held.pop(index, None), self._end_snapshot)

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
        value = self._held[index]
        for start in range(0, value.size, PIECE_BYTES):
            yield value[start : start + PIECE_BYTES]

    def _end_snapshot(self) -> None:
        self._held = {}
        self._lifetime.end_snapshot()

    def _free(self) -> None:
        self._values = {}
        self._buffers.close()
