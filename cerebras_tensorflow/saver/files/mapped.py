"""Tensors as copy-on-write maps of a checkpoint's file: the bytes that the page cache holds, checked but not copied.

As long as one of its values is in use, a mapped file carries a shared flock. An update in place asks for the exclusive
one: where another process refuses it, a changed copy takes the file's place instead (`h5_update`), and values that this
process has mapped are copied to separate memory first. So loaded values do not change.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

from cerebras_tensorflow.errors import CorruptCheckpointError
from cerebras_tensorflow.saver.files import extents
from cerebras_tensorflow.saver.interface import StoredExtent, TensorReader

# Smaller tensors are read: their own memory costs less than faults on a map.
_MIN_BYTES = 256 << 10
# Not in the mmap module before 3.13. Without it the kernel refuses private maps of files larger than its memory.
_MAP_NORESERVE = 0x4000
_MADV_POPULATE_WRITE = 23


@dataclass(frozen=True)
class _Live:
    """A map that arrays of this process may still use; a forked child shares its lock and must not release it."""

    pages: weakref.ref[mmap.mmap]
    fd: int
    inode: tuple[int, int]
    process: int


_live: dict[int, _Live] = {}
_live_lock = threading.RLock()


class Maps:
    """Maps the files of checkpoints, each once; a context manager. Arrays that it gave live on without it."""

    def __init__(self) -> None:
        self._pages: dict[str, mmap.mmap | None] = {}
        self._fds: dict[str, int] = {}

    def read(self, reader: TensorReader, name: str) -> np.ndarray[Any, Any]:
        """Return the value of a tensor, checked against its checksum: a large one that lies as in memory as a map.

        The array may be written to; the file does not change by it. It outlives the reader, the file's removal and
        replacement, and updates by this package. Other programs must not change the file in place or cut it short
        while the array lives: it would change too, or the process end by SIGBUS.

        Raises:
            KeyError, CorruptCheckpointError: As `TensorReader.read`.
        """
        entry = reader.entry(name)
        where = reader.extent(name) if entry.num_bytes >= _MIN_BYTES else None
        pages = None if where is None or where.offset % entry.dtype.itemsize else self._map(where)
        if where is None or pages is None or where.offset + entry.num_bytes > len(pages):
            return reader.read(name)
        try:
            crc = extents.checksum(self._fds[where.path], where.offset, entry.num_bytes)
        except EOFError as exc:
            raise CorruptCheckpointError(f"{where.path}: tensor {name!r} is cut short: {exc}") from exc
        if crc != where.crc:
            # The reader says it with all that it knows, or the damage was of a moment.
            return reader.read(name)
        content = np.frombuffer(pages, np.uint8, entry.num_bytes, where.offset)
        return content.view(entry.dtype).reshape(entry.shape)

    def __enter__(self) -> Maps:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._pages.clear()
        self._fds.clear()

    def _map(self, where: StoredExtent) -> mmap.mmap | None:
        if where.path not in self._pages:
            self._pages[where.path] = self._locked_map(where.path)
        return self._pages[where.path]

    def _locked_map(self, path: str) -> mmap.mmap | None:
        """Return a private map of a whole file, under a lock that ends with it; None where that cannot be."""
        with _live_lock:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                pages = mmap.mmap(fd, 0, mmap.MAP_PRIVATE | _MAP_NORESERVE, mmap.PROT_READ | mmap.PROT_WRITE)
            except (OSError, ValueError):
                # Being updated at this moment, on a file system without locks or maps, or empty.
                os.close(fd)
                return None
            _live[fd] = _Live(weakref.ref(pages), fd, _inode(fd), os.getpid())
            weakref.finalize(pages, _forget, fd)
            self._fds[path] = fd
            return pages


@contextlib.contextmanager
def changing(fd: int, runs: Sequence[tuple[int, int]]) -> Iterator[bool]:
    """Yield whether runs (offset, size) of an open file may be changed in place: no other process has it mapped.

    Values of them that this process has mapped keep what they hold, in memory of their own. The caller holds the lock
    of the checkpoint, so no other process changes it either.
    """
    inode = _inode(fd)
    with _live_lock:
        # References keep the maps alive until the end of this block.
        mine = [
            (live.fd, pages)
            for live in list(_live.values())
            if live.inode == inode and live.process == os.getpid() and (pages := live.pages()) is not None
        ]
        for own_fd, _ in mine:
            fcntl.flock(own_fd, fcntl.LOCK_UN)
        try:
            is_free = _lock(fd)
            for _, pages in mine if is_free else ():
                for offset, size in runs:
                    _make_own(pages, offset, size)
            yield is_free
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)
            for own_fd, _ in mine:
                fcntl.flock(own_fd, fcntl.LOCK_SH)


def _inode(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        # Where nothing can be locked, nothing is mapped either.
        return exc.errno != errno.EWOULDBLOCK
    return True


def _make_own(pages: mmap.mmap, offset: int, size: int) -> None:
    """Give a map private copies of the pages of a run."""
    start = offset // mmap.PAGESIZE * mmap.PAGESIZE
    stop = min(offset + size, len(pages))
    if start >= stop:
        return
    try:
        pages.madvise(_MADV_POPULATE_WRITE, start, stop - start)
    except OSError as exc:
        if exc.errno != errno.EINVAL:
            raise
        # Linux before 5.14: writing to a page what it holds does the same.
        content = np.frombuffer(pages, np.uint8)
        content[start : stop : mmap.PAGESIZE] = content[start : stop : mmap.PAGESIZE].copy()


def _forget(fd: int) -> None:
    with _live_lock:
        _live.pop(fd, None)
        os.close(fd)
