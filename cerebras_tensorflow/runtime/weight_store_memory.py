"""The weight store that is host memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import numpy as np

from cerebras_tensorflow.errors import StoreError
from cerebras_tensorflow.graph.program import WeightSpec, dtype_from_name
from cerebras_tensorflow.runtime.store_snapshot import PIECE_BYTES, StoreSnapshot
from cerebras_tensorflow.runtime.weight_store_buffers import aligned_buffer, private_copy
from cerebras_tensorflow.runtime.weight_store_interface import WeightStore, never_written, num_rows


class MemoryStore(WeightStore):
    """All weights in host memory. Its arrays are handed out as they are, so there is nothing to check them against."""

    def __init__(self, specs: Sequence[WeightSpec]) -> None:
        super().__init__(specs)
        self._values: list[np.ndarray | None] = [None] * len(specs)
        self._written: dict[int, np.ndarray] = {}  # which rows of a weight that came in slices are there
        self._held: dict[int, np.ndarray] = {}  # what a snapshot has
        # Of writes; for each weight one, since copies of different weights may well go on at a time.
        self._locks = [threading.Lock() for _ in specs]

    def read(self, index: int) -> np.ndarray:
        value = self._whole(index)
        with self._moving("load", index, value.nbytes):
            return value

    def read_private(self, index: int) -> np.ndarray:
        value = self._whole(index)
        with self._moving("load", index, value.nbytes):
            return private_copy(value)

    def read_rows(self, index: int, rows: np.ndarray) -> np.ndarray:
        self._check_rows(index, rows)
        with self._moving("gather", index, rows.size * (self.specs[index].num_bytes // self.specs[index].shape[0])):
            return np.take(self._whole(index), rows, axis=0)

    def read_slice(self, index: int, start: int, stop: int) -> np.ndarray:
        value = self._value(index)
        written = self._written.get(index)
        if written is not None and not written[start:stop].all():
            raise never_written(self.specs[index])
        value = value[start:stop]
        with self._moving("load", index, value.nbytes):
            return value

    def write(self, index: int, value: np.ndarray) -> None:
        with self._moving("store", index, value.nbytes), self._locks[index]:
            whole = self._values[index]
            if whole is None or self._held.get(index) is whole:
                self._values[index] = private_copy(value)
            else:
                np.copyto(whole, value)
            self._written.pop(index, None)

    def write_slice(self, index: int, start: int, value: np.ndarray) -> None:
        spec = self.specs[index]
        with self._moving("store", index, value.nbytes), self._locks[index]:
            whole = self._values[index]
            if whole is None:
                whole = aligned_buffer(spec.num_bytes).view(dtype_from_name(spec.dtype)).reshape(spec.shape)
                self._values[index] = whole
                self._written[index] = np.zeros(num_rows(spec), np.bool_)
            elif self._held.get(index) is whole:
                self._values[index] = whole = private_copy(whole)
            np.copyto(whole[start : start + len(value)], value)
            if index in self._written:
                self._written[index][start : start + len(value)] = True
                if self._written[index].all():
                    del self._written[index]

    def flush(self) -> None:
        return

    def snapshot(self) -> StoreSnapshot:
        if self._held:
            raise StoreError("the snapshot before has not been closed")
        self._held = {index: value for index, value in enumerate(self._values) if value is not None}
        return _MemorySnapshot(self._held)

    @property
    def snapshot_bytes(self) -> int:
        return sum(spec.num_bytes for spec in self.specs)

    def close(self) -> None:
        self._values = [None] * len(self.specs)

    def _value(self, index: int) -> np.ndarray:
        value = self._values[index]
        if value is None:
            raise never_written(self.specs[index])
        return value

    def _whole(self, index: int) -> np.ndarray:
        value = self._value(index)
        if index in self._written:
            raise never_written(self.specs[index])
        return value


class _MemorySnapshot(StoreSnapshot):
    """The arrays that a store had; the store replaces them, instead of writing over them, until they are released."""

    def __init__(self, held: dict[int, np.ndarray]) -> None:
        self._held = held

    def pieces(self, index: int) -> Iterator[np.ndarray]:
        whole = self._held[index].reshape(-1).view(np.uint8)
        for start in range(0, whole.size, PIECE_BYTES):
            yield whole[start : start + PIECE_BYTES]

    def release(self, index: int) -> None:
        self._held.pop(index, None)

    def close(self) -> None:
        self._held.clear()
