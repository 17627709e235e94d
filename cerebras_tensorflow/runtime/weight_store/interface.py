"""What a weight store offers: weights by their index in the Program, whole, in rows or in slices.

A store hands out a weight as an array that the caller may keep but not change, and takes new values as arrays that it
may keep. A write is visible to the next read at once, also while it is still on its way to the disk.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cerebras_tensorflow.errors import StoreError
from cerebras_tensorflow.graph.program import WeightSpec, dtype_from_name
from cerebras_tensorflow.runtime.weight_store.buffers import Bytes, aligned_buffer
from cerebras_tensorflow.runtime.weight_store.failures import FirstFailure
from cerebras_tensorflow.runtime.weight_store.snapshot import StoreSnapshot
from cerebras_tensorflow.runtime.weight_store.written_rows import num_rows


@dataclass(frozen=True)
class Move:
    """One transfer between the store and the step, as it happened.

    Attributes:
        kind: "load", "gather" or "store".
        weight: Index into the store's specs.
        num_bytes: Bytes moved.
        begin_s, end_s: When [s], by time.perf_counter.
    """

    kind: str
    weight: int
    num_bytes: int
    begin_s: float
    end_s: float


class WeightStore(ABC):
    """Holds the value of each streamed weight, by its index in the Program.

    Attributes:
        specs: The weights.
        bytes_read, bytes_written: Bytes moved so far.
        on_move: Called after each move, in the thread that made it; None for nothing.
    """

    def __init__(self, specs: Sequence[WeightSpec]) -> None:
        self.specs = tuple(specs)
        self.bytes_read = 0
        self.bytes_written = 0
        self.on_move: Callable[[Move], None] | None = None
        self._failure = FirstFailure()
        self._count_lock = threading.Lock()

    def read(self, index: int) -> np.ndarray:
        """Return a weight in its shape and dtype; the caller must not write to it."""
        return self.read_slice(index, 0, num_rows(self.specs[index]))

    def read_unchecked(self, index: int) -> np.ndarray:
        """Return a weight as `read` does; a store may skip its checksum, since `lend` compares it in the same step."""
        return self.read(index)

    def read_private(self, index: int) -> np.ndarray:
        """Return a weight in memory of its own, which the caller may write over."""
        return self.read(index)

    @abstractmethod
    def read_rows(self, index: int, rows: np.ndarray) -> np.ndarray:
        """Return the given rows of a weight: shape (*rows.shape, *weight.shape[1:])."""

    @abstractmethod
    def read_slice(self, index: int, start: int, stop: int) -> np.ndarray:
        """Return rows start to stop of a weight; the caller must not write to them."""

    def write(self, index: int, value: np.ndarray) -> None:
        """Replace a weight. The array must not change afterwards."""
        self.write_slice(index, 0, value)

    @abstractmethod
    def write_slice(self, index: int, start: int, value: np.ndarray) -> None:
        """Replace the rows of a weight from `start` on. The array must not change afterwards."""

    def lend(self, index: int, start: int, stop: int) -> np.ndarray:
        """Return rows for an update: flat, one element longer than they are, in memory that may be written over.

        `write_slice` takes the rows' new values, also where they were written over in place. Until then no other
        caller may read the rows. The element behind them must not change.
        """
        rows = self.read_slice(index, start, stop).reshape(-1)
        lent = aligned_buffer(rows.nbytes + rows.itemsize).view(rows.dtype)
        np.copyto(lent[:-1], rows)
        return lent

    def adopt(self, index: int, path: str | Path, offset: int, checksum: int | None) -> bool:  # noqa: ARG002
        """Read a weight from another file, which has its bytes as the store has them, until it is written.

        Args:
            index: The weight.
            path: The file; it is only read. It may be deleted or replaced by another of its name afterwards.
            offset: Of the weight's first byte.
            checksum: CRC-32C of the weight; None if it is unknown.

        Returns:
            False if this store cannot do that; the caller then has to write the weight.

        Raises:
            CheckpointError: If the file cannot be read.
            CorruptCheckpointError: If it ends early or the checksum differs.
        """
        return False

    def between_steps(self) -> None:  # noqa: B027 - most stores have nothing to do
        """Do what may not happen while a step uses weights. Called before each step."""

    @abstractmethod
    def flush(self) -> None:
        """Return when every write so far has arrived."""

    @abstractmethod
    def snapshot(self) -> StoreSnapshot:
        """Return the weights as they are now, for a checkpoint to be written while training goes on; one at a time.

        It stays readable after the store is closed.

        Raises:
            StoreError: If there is no room for it, or the last one has not been closed.
        """

    @property
    @abstractmethod
    def snapshot_bytes(self) -> int:
        """Host memory that a snapshot takes at most [B]."""

    def drop_cache(self) -> None:
        """Make the next reads come from the disk, where the store has one."""
        self.flush()

    @abstractmethod
    def close(self) -> None:
        """Give up the storage. The store cannot be used afterwards."""

    @contextmanager
    def _moving(self, kind: str, index: int, num_bytes: int) -> Iterator[None]:
        """Count a move, and report it to `on_move`."""
        begin_s = time.perf_counter()
        yield
        with self._count_lock:
            if kind == "store":
                self.bytes_written += num_bytes
            else:
                self.bytes_read += num_bytes
        if self.on_move is not None:
            self.on_move(Move(kind, index, num_bytes, begin_s, time.perf_counter()))

    def _check_rows(self, index: int, rows: np.ndarray) -> None:
        limit = self.specs[index].shape[0]
        if rows.size and (rows.min() < 0 or rows.max() >= limit):
            bad = int(rows[(rows < 0) | (rows >= limit)][0])
            raise StoreError(f"index {bad} is not in [0, {limit}), the rows of {self.specs[index].name}")


def row_bytes(spec: WeightSpec) -> int:
    """Return the bytes of one row of a weight."""
    return spec.num_bytes // max(1, num_rows(spec))


def shaped(values: Bytes, spec: WeightSpec, rows: int) -> np.ndarray:
    """Return the bytes of some rows of a weight as an array of its dtype: shape (rows, *weight.shape[1:])."""
    shape = (rows, *spec.shape[1:]) if spec.shape else ()
    return values.view(dtype_from_name(spec.dtype)).reshape(shape)


def as_bytes(value: np.ndarray) -> Bytes:
    """Return a contiguous array's bytes, without a copy."""
    return value.reshape(-1).view(np.uint8)
