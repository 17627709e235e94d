"""The weight store that is a file in memory: mapped, so that a load is a reference and an update happens in place.

It is for weights that fit into memory: the page cache holds the file, and the system writes it to the disk when it sees
fit. Each piece of a weight has a checksum (checksums.py), taken when it is written. It is compared before the
piece is updated, saved, or read by a step that does not update it: so a flipped bit, of memory or of disk, ends the run
in the step that follows, before anything learned from it is saved. A step's loads of a weight that it updates are not
compared on their own: that would cost more than all else that a load does, and find nothing sooner than the update.
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
from cerebras_tensorflow.runtime.host.disk_space import Need, check_space, punch_hole, reserve
from cerebras_tensorflow.runtime.weight_store.buffers import PAGE_BYTES, private_copy, up_to
from cerebras_tensorflow.runtime.weight_store.checksums import PIECE_BYTES, Bytes, DamagedPiece, Sums, check
from cerebras_tensorflow.runtime.weight_store.folder import StoreFolder
from cerebras_tensorflow.runtime.weight_store.interface import WeightStore, never_written, num_rows, row_bytes
from cerebras_tensorflow.runtime.weight_store.snapshot import PIECE_BYTES as SNAPSHOT_PIECE_BYTES
from cerebras_tensorflow.runtime.weight_store.snapshot import StoreSnapshot


class MappedStore(WeightStore):
    """All weights in one mapped file, each at a page boundary and with two places for it.

    A weight lies in one of its places. While a snapshot holds that, new values go to the other.

    Args:
        specs: The weights.
        folder: Where the file goes, see folder.py; made if it is missing.
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
        length = 2 * self._total + PAGE_BYTES  # with room for the element that `lend` hands out beside the last weight
        os.ftruncate(self._folder.file, length)
        self._mapping = mmap.mmap(self._folder.file, length)
        self._is_closed = False
        self._place = [0] * len(specs)
        self._values: list[np.ndarray | None] = [None] * len(specs)
        self._written: dict[int, np.ndarray] = {}  # which rows of a weight that came in slices are there
        self._held: dict[int, np.ndarray] = {}  # what a snapshot has
        self._sums = [Sums(spec.num_bytes) for spec in specs]
        self._failure: StoreError | None = None
        self._is_snapshot_open = False
        self._has_unused_slots = False
        # Of writes and of checksums; for each weight one, since different weights may well change at a time.
        self._locks = [threading.Lock() for _ in specs]

    def read(self, index: int) -> np.ndarray:
        value = self._whole(index)
        with self._moving("load", index, value.nbytes):
            self._check(index, value, 0, value.nbytes)
            return value

    def read_unchecked(self, index: int) -> np.ndarray:
        value = self._whole(index)
        with self._moving("load", index, value.nbytes):
            return value

    def read_private(self, index: int) -> np.ndarray:
        value = self._whole(index)
        with self._moving("load", index, value.nbytes):
            self._check(index, value, 0, value.nbytes)
            return private_copy(value)

    def read_rows(self, index: int, rows: np.ndarray) -> np.ndarray:
        self._check_rows(index, rows)
        value, size = self._whole(index), row_bytes(self.specs[index])
        with self._moving("gather", index, rows.size * size):
            self._check_gathered(index, value, rows, size)
            return np.take(value, rows, axis=0)

    def read_slice(self, index: int, start: int, stop: int) -> np.ndarray:
        value, size = self._value(index), row_bytes(self.specs[index])
        self._check_written(index, start, stop)
        with self._moving("load", index, (stop - start) * size):
            self._check(index, value, start * size, stop * size)
            # Other ops may still take the old rows when their own new ones are stored.
            return private_copy(value[start:stop])

    def lend(self, index: int, start: int, stop: int) -> np.ndarray:
        spec = self.specs[index]
        low, high = start * row_bytes(spec), stop * row_bytes(spec)
        with self._moving("load", index, high - low), self._locks[index]:
            self._raise_failure()
            whole = self._value(index)
            self._check_written(index, start, stop)
            if self._held.get(index) is whole:
                whole = self._moved(index, whole)
            sums, flat = self._sums[index], _flat(whole)
            try:
                for at in (low, high):
                    sums.cut(flat, at)
                for first, last, expected in sums.between(low, high):
                    check(flat, first, last, expected)
            except DamagedPiece as error:
                raise self._damaged(index, error) from error
            sums.forget(low, high)
            dtype = dtype_from_name(spec.dtype)
            offset = self._extent(index, self._place[index])[0] + low
            return np.frombuffer(self._mapping, dtype, (high - low) // dtype.itemsize + 1, offset)

    def write(self, index: int, value: np.ndarray) -> None:
        with self._moving("store", index, value.nbytes), self._locks[index]:
            self._raise_failure()
            whole = self._values[index]
            if whole is None:
                whole = self._at(index, self._place[index])
            elif self._held.get(index) is whole:
                whole = self._other(index)
            value = np.ascontiguousarray(value)
            self._sums[index].note(0, _flat(value), PIECE_BYTES)
            np.copyto(whole, value)
            self._values[index] = whole
            self._written.pop(index, None)

    def write_slice(self, index: int, start: int, value: np.ndarray) -> None:
        size = row_bytes(self.specs[index])
        with self._moving("store", index, value.nbytes), self._locks[index]:
            self._raise_failure()
            whole = self._values[index]
            if whole is None:
                whole = self._values[index] = self._at(index, self._place[index])
                self._written[index] = np.zeros(num_rows(self.specs[index]), np.bool_)
            elif self._held.get(index) is whole:
                whole = self._moved(index, whole)
            sums, value = self._sums[index], np.ascontiguousarray(value)
            low, high = start * size, (start + len(value)) * size
            try:
                for at in (low, high):
                    sums.cut(_flat(whole), at)
            except DamagedPiece as error:
                raise self._damaged(index, error) from error
            target = whole[start : start + len(value)]
            sums.note(low, _flat(value))
            if value.ctypes.data != target.ctypes.data:
                np.copyto(target, value)
            if index in self._written:
                self._written[index][start : start + len(value)] = True
                if self._written[index].all():
                    del self._written[index]

    def flush(self) -> None:
        self._raise_failure()
        self._folder.warn_if_deleted()

    def snapshot(self) -> StoreSnapshot:
        if self._is_snapshot_open:
            raise StoreError("the snapshot before has not been closed")
        self.between_steps()
        check_space([Need("a snapshot of the weights", self._folder.folder, self._total, "weight_store_dir")])
        try:
            for index in range(len(self.specs)):
                reserve(self._folder.file, *self._extent(index, 1 - self._place[index]))
        except OSError as error:
            self._free_unused_slots()
            raise self._folder.error("a snapshot", error, "kept in") from error
        self._is_snapshot_open = True
        self._held = {index: value for index, value in enumerate(self._values) if value is not None}
        sums = {index: self._sums[index].pieces() for index in self._held}
        return _MappedSnapshot(self._held, sums, self._damaged, self._end_snapshot)

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

    def _moved(self, index: int, whole: np.ndarray) -> np.ndarray:
        """Copy a weight that a snapshot holds to its other place, where it then is."""
        other = self._other(index)
        np.copyto(other, whole)
        self._values[index] = other
        return other

    def _check(self, index: int, value: np.ndarray, start: int, stop: int) -> None:
        """Compare the pieces of a weight that have bytes in [start, stop) with their checksums.

        Raises:
            StoreError: If one differs, or one has before.
        """
        self._raise_failure()
        with self._locks[index]:
            pieces = self._sums[index].between(start, stop)
            try:
                for first, last, expected in pieces:
                    check(_flat(value), first, last, expected)
            except DamagedPiece as error:
                raise self._damaged(index, error) from error

    def _check_gathered(self, index: int, value: np.ndarray, rows: np.ndarray, size: int) -> None:
        """Compare the pieces that rows lie in."""
        checked = 0
        for row in np.unique(rows).tolist():
            start, stop = max(row * size, checked), (row + 1) * size
            if start < stop:
                self._check(index, value, start, stop)
                with self._locks[index]:
                    checked = self._sums[index].between(start, stop)[-1][1]

    def _damaged(self, index: int, error: DamagedPiece) -> StoreError:
        """Let every use from now on raise this error: what is in the store is not what it should be."""
        self._failure = self._failure or StoreError(
            f"{self.specs[index].name} is damaged in the weight store: {error} of it in {self._folder.path} are not "
            "what was written. The run stops and saves nothing that it learned from them. Disk or memory of this "
            "machine is at fault, or another program wrote to the file: look at its log (dmesg), choose another disk "
            "with weight_store_dir, and start again; the run goes on from the last checkpoint."
        )
        return self._failure

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _check_written(self, index: int, start: int, stop: int) -> None:
        written = self._written.get(index)
        if written is not None and not written[start:stop].all():
            raise never_written(self.specs[index])

    def between_steps(self) -> None:
        # A step may have loaded a weight from the place that it left while the snapshot had it; giving a place back
        # clears it. So this waits for the end of the step in which the snapshot was closed.
        if self._has_unused_slots:
            self._has_unused_slots = False
            self._free_unused_slots()

    def _end_snapshot(self) -> None:
        self._has_unused_slots = True
        self._is_snapshot_open = False

    def _free_unused_slots(self) -> None:
        """Give the disk space of the places that are not in use back."""
        for index, lock in enumerate(self._locks):
            with lock:
                if not self._is_closed:
                    punch_hole(self._folder.file, *self._extent(index, 1 - self._place[index]))

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

    def __init__(
        self,
        held: dict[int, np.ndarray],
        sums: dict[int, list[tuple[int, int, int | None]]],
        damaged: Callable[[int, DamagedPiece], StoreError],
        when_closed: Callable[[], None],
    ) -> None:
        self._held = held
        self._sums = sums
        self._damaged = damaged
        self._when_closed = when_closed
        self._is_closed = False

    def pieces(self, index: int) -> Iterator[np.ndarray]:
        whole = _flat(self._held[index])
        begin = 0
        for start, stop, expected in self._sums[index]:
            try:
                check(whole, start, stop, expected)
            except DamagedPiece as error:
                raise self._damaged(index, error) from error
            if stop - begin >= SNAPSHOT_PIECE_BYTES or stop == whole.size:
                yield whole[begin:stop]
                begin = stop

    def release(self, index: int) -> None:
        self._held.pop(index, None)

    def close(self) -> None:
        if not self._is_closed:  # a second call must not end the snapshot that came after this one
            self._is_closed = True
            self._held.clear()
            self._when_closed()


def _flat(value: np.ndarray) -> Bytes:
    return value.reshape(-1).view(np.uint8)
