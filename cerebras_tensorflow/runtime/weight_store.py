"""Where streamed weights live between their uses: host memory, or one file that is read and written in place.

A store hands out a weight as an array that the caller may keep but not change, and takes new values as arrays that it
may keep. A write is visible to the next read at once, also while it is still on its way to the file.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from cerebras_tensorflow.errors import StoreError
from cerebras_tensorflow.graph.program import WeightSpec, dtype_from_name
from cerebras_tensorflow.runtime.store_snapshot import PIECE_BYTES, Part, Slots, StoreSnapshot
from cerebras_tensorflow.units import format_bytes

_PUNCH_HOLE = 0x03  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
_ALIGNMENT = 4096  # of every weight in the file and of every buffer: a page, which TensorFlow takes without a copy


class WeightStore(ABC):
    """Holds the value of each streamed weight, by its index in the Program."""

    def __init__(self, specs: Sequence[WeightSpec]) -> None:
        self.specs = tuple(specs)
        self.bytes_read = 0
        self.bytes_written = 0

    @abstractmethod
    def read(self, index: int) -> np.ndarray:
        """Return a weight in its shape and dtype; the caller must not write to it."""

    @abstractmethod
    def read_private(self, index: int) -> np.ndarray:
        """Return a weight in memory of its own, which the caller may write over."""

    @abstractmethod
    def read_rows(self, index: int, rows: np.ndarray) -> np.ndarray:
        """Return the given rows of a weight: shape (*rows.shape, *weight.shape[1:])."""

    @abstractmethod
    def read_slice(self, index: int, start: int, stop: int) -> np.ndarray:
        """Return rows start to stop of a weight; the caller must not write to them."""

    @abstractmethod
    def write(self, index: int, value: np.ndarray) -> None:
        """Replace a weight. The array must not change afterwards."""

    @abstractmethod
    def write_slice(self, index: int, start: int, value: np.ndarray) -> None:
        """Replace the rows of a weight from `start` on. The array must not change afterwards."""

    @abstractmethod
    def flush(self) -> None:
        """Return when every write so far has arrived."""

    @abstractmethod
    def snapshot(self) -> StoreSnapshot:
        """Return the weights as they are now, for a checkpoint to be written while training goes on; one at a time.

        Raises:
            StoreError: If there is no room for it, or the last one has not been closed.
        """

    @abstractmethod
    def close(self) -> None:
        """Give up the storage. The store cannot be used afterwards."""

    def _check_rows(self, index: int, rows: np.ndarray) -> None:
        limit = self.specs[index].shape[0]
        if rows.size and (rows.min() < 0 or rows.max() >= limit):
            bad = int(rows[(rows < 0) | (rows >= limit)][0])
            raise StoreError(f"index {bad} is not in [0, {limit}), the rows of {self.specs[index].name}")


class MemoryStore(WeightStore):
    """All weights in host memory."""

    def __init__(self, specs: Sequence[WeightSpec]) -> None:
        super().__init__(specs)
        self._values: list[np.ndarray | None] = [None] * len(specs)
        self._held: dict[int, np.ndarray] = {}
        self._lock = threading.Lock()  # of what is held

    def read(self, index: int) -> np.ndarray:
        value = self._values[index]
        if value is None:
            raise StoreError(f"{self.specs[index].name} was never written to the store")
        self.bytes_read += value.nbytes
        return value

    def read_private(self, index: int) -> np.ndarray:
        return private_copy(self.read(index))

    def read_rows(self, index: int, rows: np.ndarray) -> np.ndarray:
        self._check_rows(index, rows)
        return np.take(self.read(index), rows, axis=0)

    def read_slice(self, index: int, start: int, stop: int) -> np.ndarray:
        return self.read(index)[start:stop]

    def write(self, index: int, value: np.ndarray) -> None:
        self.bytes_written += value.nbytes
        with self._lock:
            whole = self._values[index]
            if whole is None or (index in self._held and self._held[index] is whole):
                self._values[index] = private_copy(value)
            else:
                np.copyto(whole, value)

    def write_slice(self, index: int, start: int, value: np.ndarray) -> None:
        self.bytes_written += value.nbytes
        whole = self._values[index]
        if whole is None:
            raise StoreError(f"{self.specs[index].name} was never written to the store")
        with self._lock:
            if index in self._held and self._held[index] is whole:
                self._values[index] = whole = private_copy(whole)
            np.copyto(whole[start : start + len(value)], value)

    def flush(self) -> None:
        return

    def snapshot(self) -> StoreSnapshot:
        with self._lock:
            if self._held:
                raise StoreError("the snapshot before has not been closed")
            self._held = {index: value for index, value in enumerate(self._values) if value is not None}
        return _MemorySnapshot(self._held, self._lock)

    def close(self) -> None:
        self._values = [None] * len(self.specs)


class _MemorySnapshot(StoreSnapshot):
    """The arrays that a store had; the store replaces them, instead of writing over them, until they are released."""

    def __init__(self, held: dict[int, np.ndarray], lock: threading.Lock) -> None:
        self._held = held
        self._lock = lock

    def pieces(self, index: int) -> Iterator[np.ndarray]:
        whole = self._held[index].reshape(-1).view(np.uint8)
        for start in range(0, whole.size, PIECE_BYTES):
            yield whole[start : start + PIECE_BYTES]

    def release(self, index: int) -> None:
        with self._lock:
            self._held.pop(index, None)

    def close(self) -> None:
        with self._lock:
            self._held.clear()


class FileStore(WeightStore):
    """All weights in one file, each at a page boundary; reads go to fresh aligned buffers, writes go behind.

    The file is scratch: a checkpoint is what survives a run. It has no name once it is open, so nothing of it is left
    behind by a run that is killed.

    Args:
        specs: The weights.
        folder: Where the file goes; made if it is missing.
        max_pending_bytes: Bytes of values on their way to the file before a write has to wait.

    Raises:
        StoreError: If the folder's disk has less space than the weights need.
    """

    def __init__(self, specs: Sequence[WeightSpec], folder: Path, max_pending_bytes: int = 64_000_000) -> None:
        super().__init__(specs)
        offsets: list[int] = []
        end = 0
        for spec in specs:
            offsets.append(end)
            end += -(-spec.num_bytes // _ALIGNMENT) * _ALIGNMENT
        rows = [_rows(spec) for spec in specs]
        sizes = [spec.num_bytes // count for spec, count in zip(specs, rows, strict=True)]
        self._slots = Slots(offsets, rows, sizes, end)
        self._snapshot: _FileSnapshot | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"the weight store cannot use {folder} ({error}); choose another folder with weight_store_dir"
            ) from error
        free = shutil.disk_usage(folder).free
        if free < end:
            raise StoreError(
                f"the weight store needs {format_bytes(end)} in {folder}, which has {format_bytes(free)} free; "
                f"free {format_bytes(end - free)}, or choose another folder with weight_store_dir"
            )
        self._folder = folder
        path = folder / f"weights.{os.getpid()}.scratch"
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(self._file, 0, max(end, 1))
        except OSError as error:
            os.close(self._file)
            raise StoreError(f"the weight store cannot reserve {format_bytes(end)} in {folder}: {error}") from error
        finally:
            os.unlink(path)
        self._max_pending_bytes = max_pending_bytes
        self._pending: dict[int, list[Future[None]]] = {}
        self._pending_bytes = 0
        self._changed = threading.Condition(threading.RLock())
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="weight-store")

    def read(self, index: int) -> np.ndarray:
        return self.read_slice(index, 0, _rows(self.specs[index]))

    def read_private(self, index: int) -> np.ndarray:
        return self.read(index)

    def read_slice(self, index: int, start: int, stop: int) -> np.ndarray:
        self._wait_for(index)
        spec = self.specs[index]
        row_bytes = spec.num_bytes // _rows(spec)
        buffer = aligned_buffer((stop - start) * row_bytes)
        for part in self._parts(index, start, stop):
            view = buffer.data[(part.start - start) * row_bytes : (part.stop - start) * row_bytes]
            self._read_into(view, part.offset, spec.name)
        shape = (stop - start, *spec.shape[1:]) if spec.shape else ()
        return buffer.view(dtype_from_name(spec.dtype)).reshape(shape)

    def read_rows(self, index: int, rows: np.ndarray) -> np.ndarray:
        self._check_rows(index, rows)
        self._wait_for(index)
        spec = self.specs[index]
        row_bytes = spec.num_bytes // spec.shape[0]
        unique, inverse = np.unique(rows, return_inverse=True)
        buffer = aligned_buffer(row_bytes * unique.size)
        view = buffer.data
        for number, row in enumerate(unique.tolist()):
            part = view[number * row_bytes : (number + 1) * row_bytes]
            self._read_into(part, self._parts(index, row, row + 1)[0].offset, spec.name)
        values = buffer.view(dtype_from_name(spec.dtype)).reshape(unique.size, *spec.shape[1:])
        return values[inverse.reshape(rows.shape)]

    def write(self, index: int, value: np.ndarray) -> None:
        self._write_rows(index, 0, _rows(self.specs[index]), value)

    def write_slice(self, index: int, start: int, value: np.ndarray) -> None:
        self._write_rows(index, start, start + len(value), value)

    def flush(self) -> None:
        for index in range(len(self.specs)):
            self._wait_for(index)

    def snapshot(self) -> StoreSnapshot:
        self.flush()
        with self._changed:
            if self._snapshot is not None:
                raise StoreError("the snapshot before has not been closed")
            for index, part, offset in self._slots.unsettled():
                num_bytes = (part.stop - part.start) * (self.specs[index].num_bytes // _rows(self.specs[index]))
                self._copy(part.offset, offset, num_bytes, self.specs[index].name)
                self._free(index, self._slots.target(index, part.start, part.stop)[1])
            needed = sum(spec.num_bytes for spec in self.specs)
            free = shutil.disk_usage(self._folder).free
            if free < needed:
                raise StoreError(
                    f"a snapshot needs {format_bytes(needed)} in {self._folder}, {format_bytes(free)} free"
                )
            slots = self._slots.hold()
            self._snapshot = _FileSnapshot(self, [slot for slot, _ in slots])
            try:
                for spec, (_, other) in zip(self.specs, slots, strict=True):
                    os.posix_fallocate(self._file, other.offset, max(spec.num_bytes, 1))
            except OSError as error:
                self._snapshot.close()
                raise StoreError(f"a snapshot needs {format_bytes(needed)} in {self._folder}: {error}") from error
            return self._snapshot

    def read_slot(self, index: int, slot: Part) -> Iterator[np.ndarray]:
        """Yield the bytes of a weight as a snapshot has it, in pieces that share one buffer."""
        num_bytes = self.specs[index].num_bytes
        scratch = aligned_buffer(min(num_bytes, PIECE_BYTES))
        for start in range(0, num_bytes, PIECE_BYTES):
            piece = scratch[: num_bytes - start]
            self._fill(piece.data, slot.offset + start, self.specs[index].name)
            yield piece

    def release(self, index: int | None) -> None:
        """End the snapshot's hold on a weight; None: on all, and the snapshot."""
        with self._changed:
            for number in range(len(self.specs)) if index is None else (index,):
                self._free(number, self._slots.release(number))
            if index is None:
                self._snapshot = None

    def drop_cache(self) -> None:
        """Write everything to the disk and let the system forget its copies, so that the next reads are cold."""
        self.flush()
        os.fdatasync(self._file)
        os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        self._writer.shutdown(wait=True)
        os.close(self._file)

    def _wait_for(self, index: int) -> None:
        """Return when all writes of a weight so far have arrived."""
        with self._changed:
            futures = list(self._pending.get(index, ()))
        for future in futures:
            future.result()

    def _parts(self, index: int, start: int, stop: int) -> list[Part]:
        with self._changed:
            return self._slots.parts(index, start, stop)

    def _free(self, index: int, slot: Part | None) -> None:
        """Give the disk space of a slot back; where the system cannot, it stays taken until the store is closed."""
        if slot is not None:
            size = -(-self.specs[index].num_bytes // _ALIGNMENT) * _ALIGNMENT
            ctypes.CDLL(None).fallocate(self._file, _PUNCH_HOLE, ctypes.c_int64(slot.offset), ctypes.c_int64(size))

    def _copy(self, source: int, target: int, num_bytes: int, name: str) -> None:
        for start in range(0, num_bytes, PIECE_BYTES):
            piece = np.empty(min(PIECE_BYTES, num_bytes - start), np.uint8)
            self._fill(piece.data, source + start, name)
            self._write_out(piece.data, target + start, name)

    def _write_rows(self, index: int, start: int, stop: int, value: np.ndarray) -> None:
        value = np.ascontiguousarray(value)
        with self._changed:
            self._changed.wait_for(
                lambda: self._pending_bytes == 0 or self._pending_bytes + value.nbytes <= self._max_pending_bytes
            )
            offset, freed = self._slots.target(index, start, stop)
            self._free(index, freed)
            self._pending_bytes += value.nbytes
            # One writer thread, so that two writes of the same bytes arrive in their order.
            future = self._writer.submit(self._write_behind, index, offset, value)
            self._pending.setdefault(index, []).append(future)
            future.add_done_callback(lambda done: self._arrived(index, done, value.nbytes))

    def _arrived(self, index: int, future: Future[None], num_bytes: int) -> None:
        """A write has ended; one that failed stays, so that the next use of the weight raises its error."""
        with self._changed:
            self._pending_bytes -= num_bytes
            if future.exception() is None:
                self._pending[index].remove(future)
            self._changed.notify_all()

    def _read_into(self, view: memoryview, offset: int, name: str) -> None:
        self._fill(view, offset, name)
        self.bytes_read += len(view)

    def _fill(self, view: memoryview, offset: int, name: str) -> None:
        done = 0
        while done < len(view):
            count = os.preadv(self._file, [view[done:]], offset + done)
            if count == 0:
                raise StoreError(f"{name} ends early in the weight store")
            done += count

    def _write_behind(self, index: int, offset: int, value: np.ndarray) -> None:
        self._write_out(value.reshape(-1).view(np.uint8).data, offset, self.specs[index].name)
        self.bytes_written += value.nbytes

    def _write_out(self, view: memoryview, offset: int, name: str) -> None:
        done = 0
        try:
            while done < len(view):
                done += os.pwritev(self._file, [view[done:]], offset + done)
        except OSError as error:
            raise StoreError(f"{name} could not be written to the weight store: {error}") from error


class _FileSnapshot(StoreSnapshot):
    """The slots that the weights had; the store writes to the other ones until these are released."""

    def __init__(self, store: FileStore, slots: Sequence[Part]) -> None:
        self._store = store
        self._slots = tuple(slots)

    def pieces(self, index: int) -> Iterator[np.ndarray]:
        return self._store.read_slot(index, self._slots[index])

    def release(self, index: int) -> None:
        self._store.release(index)

    def close(self) -> None:
        self._store.release(None)


def _rows(spec: WeightSpec) -> int:
    return spec.shape[0] if spec.shape else 1


def aligned_buffer(num_bytes: int) -> np.ndarray:
    """Return uninitialised bytes that start at a page boundary: shape (num_bytes,), uint8."""
    raw = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + num_bytes]


def private_copy(value: np.ndarray) -> np.ndarray:
    """Return a copy of an array at a page boundary."""
    copy = aligned_buffer(value.nbytes).view(value.dtype).reshape(value.shape)
    np.copyto(copy, value)
    return copy
