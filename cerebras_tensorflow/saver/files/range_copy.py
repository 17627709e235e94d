"""Copying values from file to file in several threads, checksummed while they are in a core's cache.

A conversion uses this copy for values whose bytes are the same in both formats. Writes to one file take turns: the
kernel serializes them anyway, with spinning writers.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType

import numpy as np

from cerebras_tensorflow.errors import CheckpointError, CorruptCheckpointError
from cerebras_tensorflow.saver.files import extents
from cerebras_tensorflow.saver.files.atomic import reporting
from cerebras_tensorflow.saver.files.checksum import combine, crc32c
from cerebras_tensorflow.saver.interface import Reservation, StoredExtent

# A thread's task is one block. It reads, checksums and writes it piece by piece, so that a piece stays in the cache.
_BLOCK_BYTES = 16 << 20
_PIECE_BYTES = 512 << 10
# Smaller values are not worth a task.
MIN_BYTES = 1 << 20


@dataclass(frozen=True)
class _Copy:
    """One value that is being copied."""

    name: str
    source: StoredExtent
    num_bytes: int
    blocks: list[Future[int]]


class RangeCopier:
    """Copies values in several threads. A context manager: its normal end waits until all are copied and checked.

    Args:
        num_threads: Each uses half a megabyte of memory.
        progress: Called in the caller's thread with the number of bytes of each copied block.
    """

    def __init__(self, num_threads: int, progress: Callable[[int], None] | None = None) -> None:
        self._progress = progress
        self._most_pending = 4 * num_threads
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="checkpoint-copy")
        self._scratch = threading.local()
        self._pending: deque[_Copy] = deque()
        self._fds: dict[str, int] = {}

    def copy(self, name: str, source: StoredExtent, num_bytes: int, reservation: Reservation) -> None:
        """Start to copy a value; first wait if too many blocks are pending.

        Raises:
            CorruptCheckpointError: If an earlier value fails its checksum.
            CheckpointError: If an earlier value cannot be read or written.
        """
        while sum(len(copy.blocks) for copy in self._pending) >= self._most_pending:
            self._finish_first()
        if source.path not in self._fds:
            with _reading(name, source):
                self._fds[source.path] = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC)
        fd = self._fds[source.path]
        blocks = []
        for start in range(0, num_bytes, _BLOCK_BYTES):
            stop = min(start + _BLOCK_BYTES, num_bytes)
            blocks.append(self._threads.submit(self._block, fd, name, source, reservation, start, stop))
        self._pending.append(_Copy(name, source, num_bytes, blocks))

    def __enter__(self) -> RangeCopier:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            while exc_type is None and self._pending:
                self._finish_first()
        finally:
            self._threads.shutdown(cancel_futures=True)
            for fd in self._fds.values():
                os.close(fd)

    def _finish_first(self) -> None:
        copy = self._pending.popleft()
        crc = 0
        for start, block in zip(range(0, copy.num_bytes, _BLOCK_BYTES), copy.blocks, strict=True):
            size = min(_BLOCK_BYTES, copy.num_bytes - start)
            try:
                crc = combine(crc, block.result(), size)
            except EOFError as exc:
                raise _corrupt(copy, str(exc)) from exc
            if self._progress is not None:
                self._progress(size)
        if crc != copy.source.crc:
            raise _corrupt(copy, f"its checksum is {crc:#010x}, the index says {copy.source.crc:#010x}")

    def _block(self, fd: int, name: str, source: StoredExtent, reservation: Reservation, start: int, stop: int) -> int:
        """Copy one block of a value; return its CRC-32C."""
        scratch: extents.Bytes | None = getattr(self._scratch, "buffer", None)
        if scratch is None:
            scratch = self._scratch.buffer = np.empty(_PIECE_BYTES, np.uint8)
        crc = 0
        for done in range(start, stop, _PIECE_BYTES):
            piece = scratch[: min(_PIECE_BYTES, stop - done)]
            with _reading(name, source):
                extents.fill(fd, source.offset + done, piece)
            crc = crc32c(piece, crc)
            with reporting(reservation.path):
                reservation.write(piece.data, done)
        return crc


@contextlib.contextmanager
def _reading(name: str, source: StoredExtent) -> Iterator[None]:
    """Turn an OSError from reading a value into a CheckpointError that names file, tensor and position."""
    try:
        yield
    except OSError as exc:
        raise CheckpointError(
            f"{source.path}: tensor {name!r} (from byte {source.offset} on) cannot be read: {exc.strerror or exc}. "
            "Check the disk, or use another checkpoint."
        ) from exc


def _corrupt(copy: _Copy, problem: str) -> CorruptCheckpointError:
    source = copy.source
    return CorruptCheckpointError(
        f"{source.path}: tensor {copy.name!r} (bytes {source.offset} to {source.offset + copy.num_bytes}) is damaged: "
        f"{problem}. Use another checkpoint."
    )
