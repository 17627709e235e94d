"""The file object through which HDF5 writes its own records of a checkpoint to disk."""

from __future__ import annotations

import os
from typing import Any

from cerebras_tensorflow.saver.files.writeback import pwrite_all


class MetadataFile:
    """The file object through which HDF5 writes its metadata.

    An error raised inside HDF5 would keep it from closing the file and freeing its space. So errors are stored, and
    `check` raises them.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._position = 0
        self._error: OSError | None = None
        self._is_dropping = False

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def drop_writes(self) -> None:
        self._is_dropping = True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: os.fstat(self._fd).st_size}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int) -> bytes:
        data = os.pread(self._fd, size, self._position)
        self._position += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        count = os.preadv(self._fd, [buffer], self._position)
        self._position += count
        return count

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self._error is None and not self._is_dropping:
            try:
                pwrite_all(self._fd, view, self._position)
            except OSError as exc:
                self._error = exc
        self._position += view.nbytes
        return view.nbytes

    def truncate(self, size: int) -> int:
        if self._error is None and not self._is_dropping:
            try:
                # Skip a truncation to the current size: ext4 takes a truncation to 0 as a rewrite of the file, and
                # flushes the file when it is closed.
                if os.fstat(self._fd).st_size != size:
                    os.ftruncate(self._fd, size)
            except OSError as exc:
                self._error = exc
        return size

    def flush(self) -> None:
        """Do nothing: the commit makes the file durable."""
