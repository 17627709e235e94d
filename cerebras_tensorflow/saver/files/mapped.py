"""Tensors as copy-on-write maps of a checkpoint's file: checked, but not copied out of the page cache.

A mapped file carries a shared flock while one of its values is in use. An update in place takes an exclusive lock. If
another process has the file mapped, the update cannot take it, and replaces the file with a changed copy instead
(`hdf5/update.py`). Values that this process has mapped are copied to separate memory first. So loaded values never
change.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

from cerebras_tensorflow.errors import CorruptCheckpointError
from cerebras_tensorflow.saver.files import extents
from cerebras_tensorflow.saver.interface import StoredExtent, TensorReader

# Smaller tensors are read into arrays, which costs less than page faults on a map.
_MIN_BYTES = 256 << 10
# One thread compares checksums at half the rate at which `cat` reads the page cache.
_THREADS = 2
# mmap has this flag from Python 3.13 on. Without it the kernel refuses private maps of files larger than its memory.
_MAP_NORESERVE = 0x4000
_MADV_POPULATE_WRITE = 23


@dataclass(frozen=True)
class _Live:
    """A map that arrays of this process may still use. A forked child shares its lock and must not release it."""

    pages: weakref.ref[mmap.mmap]
    fd: int
    inode: tuple[int, int]
    process: int


_live: dict[int, _Live] = {}
_live_lock = threading.RLock()


class Maps:
    """Maps each checkpoint file once. A context manager; arrays from `read_all` stay valid after its end."""

    def __init__(self) -> None:
        self._pages: dict[str, mmap.mmap | None] = {}
        self._fds: dict[str, int] = {}

    def read_all(self, reader: TensorReader, names: Iterable[str]) -> dict[str, np.ndarray[Any, Any]]:
        """Return the values of tensors, each compared with its checksum: maps of large plain ones.

        Writing to an array does not change the file. The arrays stay valid after the reader is closed, the file is
        removed or replaced, or this package updates it. While one is in use, other programs must not change the file in
        place, which may change the array, or truncate it, which may kill this process with SIGBUS.

        Raises:
            KeyError, CorruptCheckpointError: As `TensorReader.read`.
        """
        places = {name: self._find(reader, name) for name in names}
        reader.will_read(name for name, one in places.items() if one is None)
        pool = ThreadPoolExecutor(_THREADS, "checkpoint-reader")
        try:
            sums = {
                name: pool.submit(extents.checksum, self._fds[one.path], one.offset, reader.entry(name).num_bytes)
                for name, one in places.items()
                if one is not None
            }
            return {
                name: reader.read(name) if one is None else self._value(reader, name, one, sums[name])
                for name, one in places.items()
            }
        finally:
            pool.shutdown(cancel_futures=True)

    def _find(self, reader: TensorReader, name: str) -> StoredExtent | None:
        """Return where a tensor can be mapped; None if it cannot."""
        entry = reader.entry(name)
        where = reader.extent(name) if entry.num_bytes >= _MIN_BYTES else None
        pages = None if where is None or where.offset % entry.dtype.itemsize else self._map(where)
        return None if where is None or pages is None or where.offset + entry.num_bytes > len(pages) else where

    def _value(
        self, reader: TensorReader, name: str, where: StoredExtent, checksum: Future[int]
    ) -> np.ndarray[Any, Any]:
        try:
            crc = checksum.result()
        except EOFError as exc:
            raise CorruptCheckpointError(f"{where.path}: tensor {name!r} is cut short: {exc}") from exc
        if crc != where.crc:
            # Read again: the reader's error has more detail, or the damage was transient.
            return reader.read(name)
        entry, pages = reader.entry(name), self._pages[where.path]
        assert pages is not None
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
        """Return a private map of a whole file, locked while the map exists; None if it cannot be locked or mapped."""
        with _live_lock:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                pages = mmap.mmap(fd, 0, mmap.MAP_PRIVATE | _MAP_NORESERVE, mmap.PROT_READ | mmap.PROT_WRITE)
            except (OSError, ValueError):
                # The file is being updated, is empty, or is on a file system without locks or maps.
                os.close(fd)
                return None
            _live[fd] = _Live(weakref.ref(pages), fd, _inode(fd), os.getpid())
            weakref.finalize(pages, _forget, fd)
            self._fds[path] = fd
            return pages


@contextlib.contextmanager
def changing(fd: int, runs: Sequence[tuple[int, int]]) -> Iterator[bool]:
    """Yield whether runs (offset, size) of an open file may be changed in place: no other process has it mapped.

    Arrays of this process that map these runs keep their values: they get private copies of the pages first. The caller
    holds the checkpoint's lock, so no other process changes the file either.
    """
    inode = _inode(fd)
    with _live_lock:
        # Strong references keep the maps alive until the end of this block.
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
            for own_fd, pages in mine:
                try:
                    fcntl.flock(own_fd, fcntl.LOCK_SH)
                except OSError:  # another process may change the file from now on
                    _make_own(pages, 0, len(pages))


def _inode(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # without a lock, nobody knows whether another process has it mapped
        return False
    return True


def _make_own(pages: mmap.mmap, offset: int, size: int) -> None:
    """Make private copies of a map's pages that contain a run."""
    start = offset // mmap.PAGESIZE * mmap.PAGESIZE
    stop = min(offset + size, len(pages))
    if start >= stop:
        return
    try:
        pages.madvise(_MADV_POPULATE_WRITE, start, stop - start)
    except OSError as exc:
        if exc.errno != errno.EINVAL:
            raise
        # Linux before 5.14: writing a page's own content to it has the same effect.
        content = np.frombuffer(pages, np.uint8)
        content[start : stop : mmap.PAGESIZE] = content[start : stop : mmap.PAGESIZE].copy()


def _forget(fd: int) -> None:
    with _live_lock:
        _live.pop(fd, None)
        os.close(fd)
