"""Counts the bytes that a store moves to and from its files or servers, and says when packing zeros saves time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

MOST_PACKED_SHARE = 0.75  # of a piece's bytes; a packed piece that is larger does not pay on any disk
ALWAYS_PACKED_SHARE = 0.4  # about 75 % of zeros in float32: saves most of the bytes, and takes little time
_CORE_WORTH = 2  # a second of a core costs a step more than a second of the disk: cores also compute
_TYPICAL_PACKING_S = 0.2e-9  # of a byte (packing.py), until it is measured
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


@dataclass
class Transfer:
    """A read or write while it runs.

    Attributes:
        num_bytes: Bytes that move.
        is_rated: Whether its time tells how fast bytes move; not if it includes packing.
    """

    num_bytes: int
    is_rated: bool = True

    def note(self, num_bytes: int, moved: int) -> None:
        """Note that so many bytes moved as so many."""
        self.num_bytes, self.is_rated = moved, moved == num_bytes


class Traffic:
    """Bytes that were moved, and the time that this takes. Any thread may count.

    Args:
        first_share: `most_packed_share` before it is known how fast bytes move.

    Attributes:
        bytes_read: From files or servers.
        bytes_written: To files or servers.
    """

    def __init__(self, first_share: float = MOST_PACKED_SHARE) -> None:
        self._first_share = first_share
        self.bytes_read = 0
        self.bytes_written = 0
        self._wire, self._packing = _Rate(), _Rate()
        self._num_moving, self._since = 0, 0.0  # reads and writes now; since when there is one
        self._lock = threading.Lock()

    @contextmanager
    def reading(self, num_bytes: int) -> Iterator[Transfer]:
        """Count a read."""
        with self._moving(Transfer(num_bytes)) as transfer:
            yield transfer
        with self._lock:
            self.bytes_read += transfer.num_bytes

    @contextmanager
    def writing(self, num_bytes: int) -> Iterator[Transfer]:
        """Count a write."""
        with self._moving(Transfer(num_bytes)) as transfer:
            yield transfer
        with self._lock:
            self.bytes_written += transfer.num_bytes

    def count_packing(self, num_bytes: int, begin_s: float) -> None:
        """Note that a piece was packed or unpacked, by this thread since a time of `time.thread_time`."""
        with self._lock:
            self._packing.add(num_bytes, time.thread_time() - begin_s)

    @property
    def most_packed_share(self) -> float:
        """Share of a piece's bytes up to which packing it saves time.

        The cores may take half of the time in which the disk or wire would move the saved bytes.
        """
        moving = self._wire.s_per_byte
        if moving is None:
            return self._first_share
        packing = self._packing.s_per_byte or _TYPICAL_PACKING_S
        return min(max(1 - _CORE_WORTH * packing / moving, ALWAYS_PACKED_SHARE), MOST_PACKED_SHARE)

    @contextmanager
    def _moving(self, transfer: Transfer) -> Iterator[Transfer]:
        """Measure a read or write. Several at a time share the disk or wire, so their time counts once."""
        with self._lock:
            if not self._num_moving:
                self._since = time.perf_counter()
            self._num_moving += 1
        try:
            yield transfer
        finally:
            with self._lock:
                now = time.perf_counter()
                if transfer.is_rated:
                    self._wire.add(transfer.num_bytes, now - self._since)
                self._since = now
                self._num_moving -= 1
