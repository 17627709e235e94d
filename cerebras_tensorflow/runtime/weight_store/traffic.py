"""Counts the bytes that a store moves between its files and memory."""

from __future__ import annotations

import threading


class Traffic:
    """Bytes that were moved. Any thread may count.

    Attributes:
        bytes_read: From files.
        bytes_written: To files.
    """

    def __init__(self) -> None:
        self.bytes_read = 0
        self.bytes_written = 0
        self._lock = threading.Lock()

    def count_read(self, num_bytes: int) -> None:
        """Add bytes that were read."""
        with self._lock:
            self.bytes_read += num_bytes

    def count_written(self, num_bytes: int) -> None:
        """Add bytes that were written."""
        with self._lock:
            self.bytes_written += num_bytes
