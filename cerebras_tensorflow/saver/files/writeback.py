"""Flushing large files to the disk while they are being written, so that the final fsync has little left to do.

Measured on a virtual disk: 4 GB copied with fsync, medians of five alternating runs. Plain 12.7 s; with write-behind
5.8 s; with space reserved too 4.2 s; `cp` and fsync 7.7 s.
"""

from __future__ import annotations

import errno
import os
import threading

from cerebras_tensorflow import files
from cerebras_tensorflow.holes import fallocate

_PERIOD_BYTES = 128 << 20
_RESERVED_FROM_BYTES = 1 << 20
# The kernel allocates page-cache pages as large as the write. In a virtual machine, large free pages may have been
# returned to the host, and fetching them back is slow: writes of 1 MB took 8 times as long as writes of 64 kB.
WRITE_BYTES = 64 << 10


class WriteBehind:
    """Flushes an open file in a second thread each time another 128 MiB of it are written.

    Args:
        fd: The file.
        is_durable: Whether to flush at all; otherwise the kernel writes the file at a time of its choice.

    Attributes:
        fd: The file.
    """

    def __init__(self, fd: int, is_durable: bool = True) -> None:
        self.fd = fd
        self._is_durable = is_durable
        self._lock = threading.Lock()
        self._unflushed_bytes = 0
        self._thread: threading.Thread | None = None
        self._error: OSError | None = None

    def wrote(self, num_bytes: int) -> None:
        """Count bytes that the caller has written.

        Raises:
            OSError: If an earlier flush failed.
        """
        with self._lock:
            self._note(num_bytes)

    def write_at(self, content: memoryview, offset: int) -> None:
        """Write at an offset; may be called from several threads, which take turns.

        Raises:
            OSError: If the write, or an earlier flush, failed.
        """
        with self._lock:
            pwrite_all(self.fd, content, offset)
            self._note(content.nbytes)

    def finish(self) -> None:
        """Wait for the flush in progress. Call it before the file is closed.

        Raises:
            OSError: If a flush failed.
        """
        self.stop()
        self._check()

    def stop(self) -> None:
        """Wait for the flush in progress, and ignore its errors."""
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
            files.flush(self.fd, has_metadata=False)
        except OSError as exc:
            self._error = exc


def pwrite_all(fd: int, view: memoryview, position: int) -> None:
    """Write all of a flat byte view at a position; one os.pwrite may write only a part."""
    while view.nbytes:
        count = os.pwrite(fd, view[:WRITE_BYTES], position)
        view = view[count:]
        position += count


def reserve(fd: int, offset: int, num_bytes: int) -> None:
    """Reserve disk space for a run of bytes: contiguous if possible, and a full disk raises before any write.

    Raises:
        OSError: If the disk is full. Does nothing if the file system cannot reserve.
    """
    if num_bytes < _RESERVED_FROM_BYTES:
        return
    code = fallocate(fd, 0, offset, num_bytes)
    if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        raise OSError(code, os.strerror(code))
