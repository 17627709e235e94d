"""Where streamed weights live between their uses: host memory, or one file that is read and written in place.

A store hands out a weight as an array that the caller may keep but not change, and takes new values as arrays that it
may keep. A write is visible to the next read at once, also while it is still on its way to the file.
"""

from __future__ import annotations

import os
import shutil
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from cerebras_tensorflow.errors import StoreError
from cerebras_tensorflow.graph.program import WeightSpec, dtype_from_name
from cerebras_tensorflow.units import format_bytes

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
        whole = self._values[index]
        if whole is None:
            self._values[index] = private_copy(value)
        else:
            np.copyto(whole, value)

    def write_slice(self, index: int, start: int, value: np.ndarray) -> None:
        self.bytes_written += value.nbytes
        whole = self._values[index]
        if whole is None:
            raise StoreError(f"{self.specs[index].name} was never written to the store")
        np.copyto(whole[start : start + len(value)], value)

    def flush(self) -> None:
        return

    def close(self) -> None:
        self._values = [None] * len(self.specs)


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
        self._offsets: list[int] = []
        end = 0
        for spec in specs:
            self._offsets.append(end)
            end += -(-spec.num_bytes // _ALIGNMENT) * _ALIGNMENT
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
        self._read_into(buffer.data, self._offsets[index] + start * row_bytes, spec.name)
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
            self._read_into(part, self._offsets[index] + row * row_bytes, spec.name)
        values = buffer.view(dtype_from_name(spec.dtype)).reshape(unique.size, *spec.shape[1:])
        return values[inverse.reshape(rows.shape)]

    def write(self, index: int, value: np.ndarray) -> None:
        self._write_at(index, self._offsets[index], value)

    def write_slice(self, index: int, start: int, value: np.ndarray) -> None:
        spec = self.specs[index]
        self._write_at(index, self._offsets[index] + start * (spec.num_bytes // _rows(spec)), value)

    def flush(self) -> None:
        for index in range(len(self.specs)):
            self._wait_for(index)

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

    def _write_at(self, index: int, offset: int, value: np.ndarray) -> None:
        value = np.ascontiguousarray(value)
        with self._changed:
            self._changed.wait_for(
                lambda: self._pending_bytes == 0 or self._pending_bytes + value.nbytes <= self._max_pending_bytes
            )
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
        done = 0
        while done < len(view):
            count = os.preadv(self._file, [view[done:]], offset + done)
            if count == 0:
                raise StoreError(f"{name} ends early in the weight store")
            done += count
        self.bytes_read += done

    def _write_behind(self, index: int, offset: int, value: np.ndarray) -> None:
        view = value.reshape(-1).view(np.uint8).data
        done = 0
        try:
            while done < len(view):
                done += os.pwritev(self._file, [view[done:]], offset + done)
        except OSError as error:
            raise StoreError(f"{self.specs[index].name} could not be written to the weight store: {error}") from error
        self.bytes_written += done


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
