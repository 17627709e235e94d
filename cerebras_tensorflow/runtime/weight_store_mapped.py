"""The weight store that is a file in memory: mapped, so that a load is a reference and a store is a copy in the cache.

It is for weights that fit into memory: the page cache holds the file, and the system writes it to the disk when it sees
fit. There is nothing to check a read against, as its bytes do not leave memory between a store and a load.
"""

from __future__ import annotations

import itertools
import mmap
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from cerebras_tensorflow.errors import StoreError
from cerebras_tensorflow.graph.program import WeightSpec, dtype_from_name
from cerebras_tensorflow.runtime.disk_space import Need, check_space, give_back, reserve
from cerebras_tensorflow.runtime.store_snapshot import PIECE_BYTES, StoreSnapshot
from cerebras_tensorflow.runtime.weight_store_buffers import PAGE_BYTES, private_copy, up_to
from cerebras_tensorflow.runtime.weight_store_folder import StoreFolder
from cerebras_tensorflow.runtime.weight_store_interface import WeightStore, never_written, num_rows


class MappedStore(WeightStore):
    """All weights in one mapped file, each at a page boundary and with two places for it.

    A weight lies in one of its places. While a snapshot holds that, new values go to the other.

    Args:
        specs: The weights.
        folder: Where the file goes, see weight_store_folder; made if it is missing.
        beside: What else the run is going to write (checkpoints), so that all of it has room.

    Raises:
        StoreError: If the folder's disk has less space than the weights need, or another run uses the folder.
    """

    def __init__(self, specs: Sequence[WeightSpec], folder: Path, beside: Sequence[Need] = ()) -> None:
        super().__init__(specs)
        sizes = [up_to(spec.num_bytes, PAGE_BYTES) for spec in specs]
        self._starts = list(itertools.accumulate(sizes, initial=0))
        self._total = self._starts[-1]
        self._folder = StoreFolder(Path(folder), self._total, False, beside)
        os.ftruncate(self._folder.file, max(2 * self._total, PAGE_BYTES))
        self._mapping = mmap.mmap(self._folder.file, max(2 * self._total, PAGE_BYTES))
        self._is_closed = False
        self._place = [0] * len(specs)
        self._values: list[np.ndarray | None] = [None] * len(specs)
        self._written: dict[int, np.ndarray] = {}  # which rows of a weight that came in slices are there
        self._held: dict[int, np.ndarray] = {}  # what a snapshot has
        self._is_snapshot_open = False
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
            if whole is None:
                whole = self._at(index, self._place[index])
            elif self._held.get(index) is whole:
                whole = self._other(index)
            np.copyto(whole, value)
            self._values[index] = whole
            self._written.pop(index, None)

    def write_slice(self, index: int, start: int, value: np.ndarray) -> None:
        with self._moving("store", index, value.nbytes), self._locks[index]:
            whole = self._values[index]
            if whole is None:
                whole = self._values[index] = self._at(index, self._place[index])
                self._written[index] = np.zeros(num_rows(self.specs[index]), np.bool_)
            elif self._held.get(index) is whole:
                other = self._other(index)
                np.copyto(other, whole)
                whole = self._values[index] = other
            np.copyto(whole[start : start + len(value)], value)
            if index in self._written:
                self._written[index][start : start + len(value)] = True
                if self._written[index].all():
                    del self._written[index]

    def flush(self) -> None:
        self._folder.warn_if_deleted()

    def snapshot(self) -> StoreSnapshot:
        if self._is_snapshot_open:
            raise StoreError("the snapshot before has not been closed")
        check_space([Need("a snapshot of the weights", self._folder.folder, self._total, "weight_store_dir")])
        try:
            for index in range(len(self.specs)):
                reserve(self._folder.file, *self._extent(index, 1 - self._place[index]))
        except OSError as error:
            self._give_back()
            raise self._folder.error("a snapshot", error, "kept in") from error
        self._is_snapshot_open = True
        self._held = {index: value for index, value in enumerate(self._values) if value is not None}
        return _MappedSnapshot(self._held, self._give_back)

    @property
    def snapshot_bytes(self) -> int:
        return 0

    def drop_cache(self) -> None:
        self._mapping.flush()
        self._mapping.madvise(mmap.MADV_DONTNEED)
        os.posix_fadvise(self._folder.file, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        self._is_closed = True
        self._values = [None] * len(self.specs)  # the mapping goes with the last array that refers to it
        self._folder.close()

    def _extent(self, index: int, place: int) -> tuple[int, int]:
        """Where a weight's place is in the file: (offset, bytes)."""
        return place * self._total + self._starts[index], self._starts[index + 1] - self._starts[index]

    def _at(self, index: int, place: int) -> np.ndarray:
        spec = self.specs[index]
        offset, _ = self._extent(index, place)
        if not spec.num_bytes:
            return np.empty(spec.shape, dtype_from_name(spec.dtype))
        flat = np.frombuffer(self._mapping, np.uint8, spec.num_bytes, offset)
        return flat.view(dtype_from_name(spec.dtype)).reshape(spec.shape)

    def _other(self, index: int) -> np.ndarray:
        self._place[index] = 1 - self._place[index]
        return self._at(index, self._place[index])

    def _give_back(self) -> None:
        """Give the disk space of the places that are not in use back, when a snapshot ends."""
        self._is_snapshot_open = False
        for index, lock in enumerate(self._locks):
            with lock:
                if not self._is_closed:
                    give_back(self._folder.file, *self._extent(index, 1 - self._place[index]))

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


class _MappedSnapshot(StoreSnapshot):
    """The arrays that a store had; the store takes other places for new values until they are released."""

    def __init__(self, held: dict[int, np.ndarray], when_closed: Callable[[], None]) -> None:
        self._held = held
        self._when_closed = when_closed
        self._is_closed = False

    def pieces(self, index: int) -> Iterator[np.ndarray]:
        whole = self._held[index].reshape(-1).view(np.uint8)
        for start in range(0, whole.size, PIECE_BYTES):
            yield whole[start : start + PIECE_BYTES]

    def release(self, index: int) -> None:
        self._held.pop(index, None)

    def close(self) -> None:
        if not self._is_closed:  # a second call must not end the snapshot that came after this one
            self._is_closed = True
            self._held.clear()
            self._when_closed()
