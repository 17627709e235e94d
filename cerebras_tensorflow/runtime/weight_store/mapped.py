"""The weight store in a mapped file: a load returns a reference, and an update happens in place.

It is for weights that fit into memory. The page cache holds the file, and the system writes it to the disk in the
background. Each piece of a weight has a checksum (checksums.py), computed at each write. The store compares it before a
step updates the piece, before a checkpoint saves it, and when a step reads it without updating it. So a flipped bit, in
memory or on disk, ends the run in the next step, before any checkpoint contains its effects. If a step loads a weight
and then updates it, only the update compares: a check at the load would take most of its time and find nothing sooner.
"""

from __future__ import annotations

import itertools
import mmap
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from typing_extensions import override

from cerebras_tensorflow.errors import StoreError
from cerebras_tensorflow.graph.program import WeightSpec, dtype_from_name
from cerebras_tensorflow.holes import punch_hole
from cerebras_tensorflow.runtime.host.disk_space import Need, check_space, reserve
from cerebras_tensorflow.runtime.weight_store.buffers import PAGE_BYTES, Bytes, private_copy, up_to
from cerebras_tensorflow.runtime.weight_store.checksums import PIECE_BYTES, DamagedPiece, Pieces, Sums, check
from cerebras_tensorflow.runtime.weight_store.failures import never_written
from cerebras_tensorflow.runtime.weight_store.folder import StoreFolder
from cerebras_tensorflow.runtime.weight_store.interface import WeightStore, as_bytes, row_bytes
from cerebras_tensorflow.runtime.weight_store.snapshot import PIECE_BYTES as SNAPSHOT_PIECE_BYTES
from cerebras_tensorflow.runtime.weight_store.snapshot import Lifetime, StoreSnapshot
from cerebras_tensorflow.runtime.weight_store.written_rows import WrittenRows


class MappedStore(WeightStore):
    """All weights in one mapped file. Each weight has two slots there, at page boundaries, and uses one of them.

    While a snapshot holds one slot, new values go to the other.

    The class has more than 20 methods: half are from WeightStore, the others share the slots, locks and checksums.

    Args:
        specs: The weights.
        folder: Folder of the file, see folder.py. It is made if it is missing.
        beside: What else the run will write (checkpoints). The disk must have room for all of it.

    Raises:
        StoreError: If the folder's disk has less space than the weights need, or another run uses the folder.
    """

    def __init__(self, specs: Sequence[WeightSpec], folder: Path, beside: Sequence[Need] = ()) -> None:
        super().__init__(specs)
        sizes = [up_to(spec.num_bytes, PAGE_BYTES) for spec in specs]
        self._starts = list(itertools.accumulate(sizes, initial=0))
        self._total = self._starts[-1]
        length = 2 * self._total + PAGE_BYTES  # one page more, for the extra element of `lend` after the last weight
        self._folder = StoreFolder(Path(folder), self._total, False, beside, length)
        try:
            self._mapping = mmap.mmap(self._folder.file, length)
        except OSError as error:
            failure = self._folder.error("the weights", error, "mapped from")
            self._folder.close()
            raise failure from error
        self._slots = [0] * len(specs)  # the slot that each weight uses
        self._values = [self._at(index, 0) for index in range(len(specs))]
        self._written = WrittenRows(specs)
        self._held: dict[int, np.ndarray] = {}  # index -> the array in the open snapshot
        self._sums = [Sums(spec.num_bytes) for spec in specs]
        self._lifetime = Lifetime()
        self._has_unused_slots = False
        # Each lock guards the writes and checksums of one weight. Different weights may change at the same time.
        self._locks = [threading.Lock() for _ in specs]

    @override
    def read(self, index: int) -> np.ndarray:
        value = self._whole(index)
        with self.moving("load", index, value.nbytes):
            self._check(index, value, 0, value.nbytes)
            return value

    @override
    def read_unchecked(self, index: int) -> np.ndarray:
        value = self._whole(index)
        with self.moving("load", index, value.nbytes):
            return value

    @override
    def read_private(self, index: int) -> np.ndarray:
        return private_copy(self.read(index))

    @override
    def read_rows(self, index: int, rows: np.ndarray) -> np.ndarray:
        self._check_rows(index, rows)
        value, size = self._whole(index), row_bytes(self.specs[index])
        with self.moving("gather", index, rows.size * size):
            self._check_gathered(index, value, rows, size)
            return np.take(value, rows, axis=0)

    @override
    def read_slice(self, index: int, start: int, stop: int) -> np.ndarray:
        self._written.check(index, slice(start, stop))
        value, size = self._values[index], row_bytes(self.specs[index])
        with self.moving("load", index, (stop - start) * size):
            self._check(index, value, start * size, stop * size)
            # Copy: other ops may still read the old rows after the new ones are stored.
            rows = np.atleast_1d(value)[start:stop]
            return private_copy(rows.reshape(rows.shape if value.shape else ()))

    @override
    def lend(self, index: int, start: int, stop: int) -> np.ndarray:
        spec = self.specs[index]
        low, high = start * row_bytes(spec), stop * row_bytes(spec)
        with self.moving("load", index, high - low), self._locks[index]:
            self._failure.check()
            self._written.check(index, slice(start, stop))
            whole = self._values[index]
            if self._held.get(index) is whole:
                whole = self._moved(index, whole)
            sums, flat = self._sums[index], as_bytes(whole)
            with self._naming_damage(index):
                for at in (low, high):
                    sums.cut(flat, at)
                for first, last, expected in sums.between(low, high):
                    check(flat, first, last, expected)
            sums.forget(low, high)
            dtype = dtype_from_name(spec.dtype)
            offset = self._extent(index, self._slots[index])[0] + low
            return np.frombuffer(self._mapping, dtype, (high - low) // dtype.itemsize + 1, offset)

    @override
    def write(self, index: int, value: np.ndarray) -> None:
        with self.moving("store", index, value.nbytes), self._locks[index]:
            self._failure.check()
            whole = self._values[index]
            if self._held.get(index) is whole:
                whole = self._other(index)
            value = np.ascontiguousarray(value)
            self._sums[index].note(0, as_bytes(value), PIECE_BYTES)
            np.copyto(whole, value)
            self._values[index] = whole
            self._written.note_all(index)

    @override
    def write_slice(self, index: int, start: int, value: np.ndarray) -> None:
        size = row_bytes(self.specs[index])
        with self.moving("store", index, value.nbytes), self._locks[index]:
            self._failure.check()
            whole = self._values[index]
            if self._held.get(index) is whole:
                whole = self._moved(index, whole)
            sums, value = self._sums[index], np.ascontiguousarray(value)
            stop = start + len(value)
            with self._naming_damage(index):
                for at in (start * size, stop * size):
                    sums.cut(as_bytes(whole), at)
            target = np.atleast_1d(whole)[start:stop]
            sums.note(start * size, as_bytes(value))
            if value.ctypes.data != target.ctypes.data:
                np.copyto(target, value)
            self._written.note(index, start, stop)

    @override
    def flush(self) -> None:
        self._failure.check()
        self._folder.warn_if_deleted()

    @override
    def snapshot(self) -> StoreSnapshot:
        with self._lifetime.new_snapshot():
            self.between_steps()
            check_space([Need("a snapshot of the weights", self._folder.folder, self._total, "weight_store_dir")])
            try:
                for index in range(len(self.specs)):
                    reserve(self._folder.file, *self._extent(index, 1 - self._slots[index]))
            except OSError as error:
                self._free_unused_slots()
                raise self._folder.error("a snapshot", error, "kept in") from error
            written = self._written.complete()
            held = self._held = {index: self._values[index] for index in written}
            sums = {index: self._sums[index].pieces() for index in written}

        def pieces(index: int) -> Iterator[Bytes]:
            if index not in sums:
                raise never_written(self.specs[index])
            return self._held_pieces(index, held[index], sums[index])

        return StoreSnapshot(
            pieces,
            lambda index: held.pop(index, None),
            self._end_snapshot,
        )

    @property
    @override
    def snapshot_bytes(self) -> int:
        return 0

    @override
    def drop_cache(self) -> None:
        self._mapping.flush()
        self._mapping.madvise(mmap.MADV_DONTNEED)
        os.posix_fadvise(self._folder.file, 0, 0, os.POSIX_FADV_DONTNEED)

    @override
    def close(self) -> None:
        if self._lifetime.is_closed:
            return
        self._lifetime.close()
        # Drop our references: TensorFlow's graph may keep this store alive. The last array frees the mapping.
        self._values = []
        del self._mapping
        self._folder.close()

    @override
    def between_steps(self) -> None:
        # Freeing a slot clears it. During a snapshot, a weight can move to its other slot after the step loaded it from
        # the first. So free slots only after the end of the step in which the snapshot was closed.
        if self._has_unused_slots and not self._lifetime.is_closed:
            self._has_unused_slots = False
            self._free_unused_slots()

    def _extent(self, index: int, slot: int) -> tuple[int, int]:
        """Return where a weight's slot is in the file: (offset, bytes)."""
        return slot * self._total + self._starts[index], self._starts[index + 1] - self._starts[index]

    def _at(self, index: int, slot: int) -> np.ndarray:
        """Return a weight's slot as an array."""
        spec = self.specs[index]
        offset, _ = self._extent(index, slot)
        if not spec.num_bytes:
            return np.empty(spec.shape, dtype_from_name(spec.dtype))
        flat = np.frombuffer(self._mapping, np.uint8, spec.num_bytes, offset)
        return flat.view(dtype_from_name(spec.dtype)).reshape(spec.shape)

    def _other(self, index: int) -> np.ndarray:
        """Switch a weight to its other slot. Return that slot as an array."""
        self._slots[index] = 1 - self._slots[index]
        return self._at(index, self._slots[index])

    def _moved(self, index: int, whole: np.ndarray) -> np.ndarray:
        """Copy a weight that a snapshot holds to its other slot, and switch to that. Return the copy."""
        other = self._other(index)
        np.copyto(other, whole)
        self._values[index] = other
        return other

    def _check(self, index: int, value: np.ndarray, start: int, stop: int) -> None:
        """Compare the checksums of a weight's pieces that have bytes in [start, stop).

        Raises:
            StoreError: If one differs, or the store has failed before.
        """
        self._failure.check()
        with self._locks[index], self._naming_damage(index):
            for first, last, expected in self._sums[index].between(start, stop):
                check(as_bytes(value), first, last, expected)

    def _check_gathered(self, index: int, value: np.ndarray, rows: np.ndarray, size: int) -> None:
        """Compare the checksums of the pieces that contain rows."""
        checked = 0
        for row in np.unique(rows).tolist():
            start, stop = max(row * size, checked), (row + 1) * size
            if start < stop:
                self._check(index, value, start, stop)
                with self._locks[index]:
                    checked = self._sums[index].between(start, stop)[-1][1]

    @contextmanager
    def _naming_damage(self, index: int) -> Iterator[None]:
        """Turn a DamagedPiece in the block into a StoreError that names the weight. Every later use raises it too."""
        try:
            yield
        except DamagedPiece as error:
            raise self._failure.keep(
                StoreError(
                    f"{self.specs[index].name} is damaged in the weight store: {error} of it in {self._folder.path} "
                    "are not what was written. The run stops before a checkpoint contains the damage. The disk or "
                    "memory of this machine is at fault, or another program wrote to the file: look at the log "
                    "(dmesg), choose another disk with weight_store_dir, and start again. The run goes on from the "
                    "last checkpoint."
                )
            ) from error

    def _held_pieces(self, index: int, value: np.ndarray, sums: Pieces) -> Iterator[Bytes]:
        """Yield the bytes of a weight in a snapshot."""
        whole, begin = as_bytes(value), 0
        for start, stop, expected in sums:
            with self._naming_damage(index):
                check(whole, start, stop, expected)
            if stop - begin >= SNAPSHOT_PIECE_BYTES or stop == whole.size:
                yield whole[begin:stop]
                begin = stop

    def _end_snapshot(self) -> None:
        self._held.clear()
        self._has_unused_slots = True
        self._lifetime.end_snapshot()

    def _free_unused_slots(self) -> None:
        """Free the disk space of the slots that are not in use."""
        for index, lock in enumerate(self._locks):
            with lock:
                punch_hole(self._folder.file, *self._extent(index, 1 - self._slots[index]))

    def _whole(self, index: int) -> np.ndarray:
        """Return the array of a weight, after checking that all its rows were written."""
        self._written.check(index)
        return self._values[index]
