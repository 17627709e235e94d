"""The interface of weight stores: weights by their index in the Program, whole, by rows or by slices.

A store returns a weight as an array. The caller may keep the array but must not change it. The store may keep the
arrays that it is given, so the caller must not change them either. The next read sees a write at once, even before the
write has reached the disk.
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
    """A measured transfer between the store and the step.

    Attributes:
        kind: "load", "gather" or "store"; between CSX "receive" (a weight from its owner) or "exchange" (sums of
            gradients).
        weight: Index into the store's specs.
        num_bytes: Bytes moved.
        begin_s, end_s: Begin and end, by time.perf_counter [s].
    """

    kind: str
    weight: int
    num_bytes: int
    begin_s: float
    end_s: float


class WeightStore(ABC):
    """Holds the value of each streamed weight, by its index in the Program.

    It has more than 20 methods because seven of them are ways to read a weight, which differ in copies and checks.

    Attributes:
        specs: The weights.
        bytes_read, bytes_written: Bytes moved so far.
        on_move: Called after each move, in the thread of the move. None: no call.
    """

    def __init__(self, specs: Sequence[WeightSpec]) -> None:
        self.specs = tuple(specs)
        self.bytes_read = 0
        self.bytes_written = 0
        self.on_move: Callable[[Move], None] | None = None
        self._failure = FirstFailure()
        self._count_lock = threading.Lock()

    def read(self, index: int) -> np.ndarray:
        """Return a weight in its shape and dtype. The caller must not change it."""
        return self.read_slice(index, 0, num_rows(self.specs[index]))

    def read_unchecked(self, index: int) -> np.ndarray:
        """Return a weight as `read` does. A store may skip the checksum, since `lend` compares it in the same step."""
        return self.read(index)

    def read_private(self, index: int) -> np.ndarray:
        """Return a weight in private memory, which the caller may overwrite."""
        return self.read(index)

    @abstractmethod
    def read_rows(self, index: int, rows: np.ndarray) -> np.ndarray:
        """Return the given rows of a weight: shape (*rows.shape, *weight.shape[1:])."""

    @abstractmethod
    def read_slice(self, index: int, start: int, stop: int) -> np.ndarray:
        """Return rows [start, stop) of a weight. The caller must not change them."""

    def view_slice(self, index: int, start: int, stop: int) -> np.ndarray:
        """Return rows as `read_slice` does. They are valid only until they are written."""
        return self.read_slice(index, start, stop)

    def write(self, index: int, value: np.ndarray) -> None:
        """Replace a weight. The array must not change afterwards."""
        self.write_slice(index, 0, value)

    @abstractmethod
    def write_slice(self, index: int, start: int, value: np.ndarray) -> None:
        """Replace the rows of a weight from `start` on. The array must not change afterwards."""

    def lend(self, index: int, start: int, stop: int) -> np.ndarray:
        """Return rows for an update: flat, with one extra element at the end, in memory that may be overwritten.

        Pass the new values to `write_slice`, even if they were computed in place. Until then no other caller may read
        the rows. Do not change the extra element.
        """
        rows = self.read_slice(index, start, stop).reshape(-1)
        lent = aligned_buffer(rows.nbytes + rows.itemsize).view(rows.dtype)
        np.copyto(lent[:-1], rows)
        return lent

    def adopt(self, index: int, path: str | Path, offset: int, checksum: int | None) -> bool:  # noqa: ARG002
        """Read a weight from another file until its first write. The file must have the bytes as the store would.

        Args:
            index: The weight.
            path: The file. It is only read. It may be deleted or replaced afterwards.
            offset: Offset of the weight's first byte.
            checksum: CRC-32C of the weight. None if it is unknown.

        Returns:
            False if this store cannot do that. The caller must then write the weight.

        Raises:
            CheckpointError: If the file cannot be read.
            CorruptCheckpointError: If the file ends early or the checksum differs.
        """
        return False

    def between_steps(self) -> None:  # noqa: B027 - most stores have nothing to do
        """Do what must not happen while a step uses weights. Called before each run."""

    def update_begins(self) -> None:  # noqa: B027
        """Note that all gradients of a step are known, and its update begins."""

    def update_ended(self) -> None:  # noqa: B027
        """Note that the update of a step has changed all weights."""

    @abstractmethod
    def flush(self) -> None:
        """Wait until every write so far has arrived."""

    @abstractmethod
    def snapshot(self) -> StoreSnapshot:
        """Return a snapshot of the weights, for a checkpoint that is written while training goes on.

        A store has at most one open snapshot. It stays readable after the store is closed.

        Raises:
            StoreError: If there is no room for a snapshot, or the last one is still open.
        """

    @property
    @abstractmethod
    def snapshot_bytes(self) -> int:
        """Most host memory that a snapshot takes [B]."""

    def drop_cache(self) -> None:
        """Make the next reads come from the disk, if the store has one."""
        self.flush()

    @abstractmethod
    def close(self) -> None:
        """Free the storage. The store cannot be used afterwards."""

    @contextmanager
    def moving(self, kind: str, index: int, num_bytes: int) -> Iterator[None]:
        """Count a move, and report it to `on_move`."""
        begin_s = time.perf_counter()
        yield
        with self._count_lock:
            if kind == "store":
                self.bytes_written += num_bytes
            elif kind != "exchange":
                self.bytes_read += num_bytes
        if self.on_move is not None:
            self.on_move(Move(kind, index, num_bytes, begin_s, time.perf_counter()))

    def _check_rows(self, index: int, rows: np.ndarray) -> None:
        limit = self.specs[index].shape[0]
        if rows.size and (rows.min() < 0 or rows.max() >= limit):
            bad = int(rows[(rows < 0) | (rows >= limit)][0])
            raise StoreError(f"index {bad} is not in [0, {limit}), the rows of {self.specs[index].name}")


def row_bytes(spec: WeightSpec) -> int:
    """Return the size of one row of a weight [B]."""
    return spec.num_bytes // max(1, num_rows(spec))


def shaped(values: Bytes, spec: WeightSpec, rows: int) -> np.ndarray:
    """Return bytes of a weight's rows as an array of its dtype: shape (rows, *weight.shape[1:])."""
    shape = (rows, *spec.shape[1:]) if spec.shape else ()
    return values.view(dtype_from_name(spec.dtype)).reshape(shape)


def as_bytes(value: np.ndarray) -> Bytes:
    """Return the bytes of a contiguous array, without a copy."""
    return value.reshape(-1).view(np.uint8)
