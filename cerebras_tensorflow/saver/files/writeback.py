"""Getting large files to the disk while they still are being written, so that the last fsync has little left to do.

Measured on a virtual disk, 4 GB copied with fsync, medians of five in turns: plain 12.7 s, with writing behind 5.8 s,
with space reserved too 4.2 s, `cp` and fsync 7.7 s.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading

_PERIOD_BYTES = 128 << 20
_RESERVED_FROM_BYTES = 1 << 20
# The kernel's page cache takes a write into pages as large as the write. In a virtual machine, large free pages are
# those that were given back to the host, and cost a trip there: writes of 1 MB took 8 times as long as of 64 kB.
WRITE_BYTES = 64 << 10


class WriteBehind:
    """Flushes an open file in a second thread each time another stretch of it is written.

    Args:
        fd: The file.
        is_durable: Whether it is to be on the disk at the end; otherwise the kernel writes it when it likes.
    """

    def __init__(self, fd: int, is_durable: bool = True) -> None:
        self._fd = fd
        self._is_durable = is_durable
        self._lock = threading.Lock()
        self._unflushed_bytes = 0
        self._thread: threading.Thread | None = None
        self._error: OSError | None = None

    def wrote(self, num_bytes: int) -> None:
        """Note that more was written.

        Raises:
            OSError: If an earlier flush failed.
        """
        with self._lock:
            self._note(num_bytes)

    def write_at(self, content: memoryview, offset: int) -> None:
        """Write at an offset; callers of several threads take turns.

        Raises:
            OSError: If the write, or an earlier flush, failed.
        """
        with self._lock:
            pwrite_all(self._fd, content, offset)
            self._note(content.nbytes)

    def finish(self) -> None:
        """Wait for the flush in progress; must come before the file is closed.

        Raises:
            OSError: If a flush failed.
        """
        self.stop()
        self._check()

    def stop(self) -> None:
        """Wait for the flush in progress, whatever became of it."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _note(self, num_bytes: int) -> None:
        if not self._is_durable:
            return
        self._unflushed_bytes += num_bytes
        if self._unflushed_bytes >= _PERIOD_BYTES and (self._thread is None or not self._thread.is_alive()):
            self._check()
            self._unflushed_bytes = 0
            self._thread = threading.Thread(target=self._flush, name="checkpoint-flush", daemon=True)
            self._thread.start()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _flush(self) -> None:
        try:
            os.fdatasync(self._fd)
        except OSError as exc:
            self._error = exc


def pwrite_all(fd: int, view: memoryview, position: int) -> None:
    """Write all of a flat byte view at a position; the system may take it in parts."""
    while view.nbytes:
        count = os.pwrite(fd, view[:WRITE_BYTES], position)
        view = view[count:]
        position += count


def reserve(fd: int, offset: int, num_bytes: int) -> None:
    """Reserve disk space for a run of bytes: it lies together, and a full disk shows before it is written.

    Raises:
        OSError: If the disk is full. A file system that cannot reserve is left alone.
    """
    if num_bytes < _RESERVED_FROM_BYTES:
        return
    # Not os.posix_fallocate: where the file system cannot reserve, that writes the whole run.
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(fd, 0, ctypes.c_int64(offset), ctypes.c_int64(num_bytes)):
        code = ctypes.get_errno()
        if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise OSError(code, os.strerror(code))
