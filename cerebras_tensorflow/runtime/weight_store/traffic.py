"""Counts the bytes that a store moves between its files and memory, and says when packing zeros saves time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

MOST_PACKED_SHARE = 0.75  # of a piece's bytes; a packed piece that is larger does not pay on any disk
_ALWAYS_PACKED_SHARE = 0.4  # about 75 % of zeros in float32: saves most of the bytes, and takes little time
_CORE_WORTH = 2  # a second of a core costs a step more than a second of the disk: cores also compute
_ENOUGH_BYTES = 64 << 20  # that give a rate
_MEMORY_BYTES = 4 << 30  # after so many, older times count half


class _Rate:
    """Time for a byte. The last few gigabytes count most."""

    def __init__(self) -> None:
        self._seconds, self._bytes = 0.0, 0

    def add(self, num_bytes: int, seconds: float) -> None:
        self._seconds += seconds
        self._bytes += num_bytes
        if self._bytes > _MEMORY_BYTES:
            self._seconds, self._bytes = self._seconds / 2, self._bytes // 2

    @property
    def s_per_byte(self) -> float | None:
        """Time for a byte [s]; None before there were enough bytes."""
        return self._seconds / self._bytes if self._bytes >= _ENOUGH_BYTES else None


class Traffic:
    """Bytes that were moved, and the time that this takes. Any thread may count.

    Attributes:
        bytes_read: From files.
        bytes_written: To files.
    """

    def __init__(self) -> None:
        self.bytes_read = 0
        self.bytes_written = 0
        self._disk, self._packing = _Rate(), _Rate()
        self._num_moving, self._since = 0, 0.0  # reads and writes now; since when there is one
        self._lock = threading.Lock()

    @contextmanager
    def reading(self, num_bytes: int) -> Iterator[None]:
        """Count a read from a file."""
        with self._moving(num_bytes):
            yield
        with self._lock:
            self.bytes_read += num_bytes

    @contextmanager
    def writing(self, num_bytes: int) -> Iterator[None]:
        """Count a write to a file."""
        with self._moving(num_bytes):
            yield
        with self._lock:
            self.bytes_written += num_bytes

    def count_packing(self, num_bytes: int, begin_s: float) -> None:
        """Note that a piece was packed or unpacked, by this thread since a time of `time.thread_time`."""
        with self._lock:
            self._packing.add(num_bytes, time.thread_time() - begin_s)

    @property
    def most_packed_share(self) -> float:
        """Share of a piece's bytes up to which packing it saves time.

        The cores may take half of the time in which the disk would move the saved bytes. Before both rates are
        known, all pieces are packed that any disk would pay for.
        """
        disk, packing = self._disk.s_per_byte, self._packing.s_per_byte
        if disk is None or packing is None:
            return MOST_PACKED_SHARE
        return min(max(1 - _CORE_WORTH * packing / disk, _ALWAYS_PACKED_SHARE), MOST_PACKED_SHARE)

    @contextmanager
    def _moving(self, num_bytes: int) -> Iterator[None]:
        """Measure a read or write. Several at a time share the disk, so their time counts once."""
        with self._lock:
            if not self._num_moving:
                self._since = time.perf_counter()
            self._num_moving += 1
        try:
            yield
        finally:
            with self._lock:
                now = time.perf_counter()
                self._disk.add(num_bytes, now - self._since)
                self._since = now
                self._num_moving -= 1
