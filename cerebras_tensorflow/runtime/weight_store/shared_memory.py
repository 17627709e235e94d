"""Memory that other processes of this user on this machine can read without copies.

It is a file in memory (memory_files.py), which another process opens through /proc. A random token at its start shows
that it is the memory that was announced, and not that of a process with the same number on another machine or in
another container.
"""

from __future__ import annotations

import hmac
import logging
import mmap
import os
import secrets
import threading
import weakref
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from cerebras_tensorflow.runtime.host import memory_files
from cerebras_tensorflow.runtime.weight_store.buffers import PAGE_BYTES, Bytes, up_to

logger = logging.getLogger(__name__)

_NAME = "cs_shared"
_TOKEN_BYTES = 32


class SharedMemory:
    """Hands out parts of one memory, and reuses each when no array refers to it any more.

    Args:
        max_bytes: Most bytes to hand out at a time. A page of memory is taken at its first write.
        max_idle_bytes: Most bytes of free parts whose pages are kept.
    """

    def __init__(self, max_bytes: int, max_idle_bytes: int = 64 << 20) -> None:
        self._max_idle_bytes = max_idle_bytes
        self._fd = memory_files.create(_NAME)
        weakref.finalize(self, os.close, self._fd)
        self._size = PAGE_BYTES + up_to(max_bytes, PAGE_BYTES)
        os.ftruncate(self._fd, self._size)
        memory_files.fix_size(self._fd)
        self._map = mmap.mmap(self._fd, self._size)
        self._token = secrets.token_bytes(_TOKEN_BYTES)
        self._map[:_TOKEN_BYTES] = self._token
        self._base = np.frombuffer(self._map, np.uint8).ctypes.data
        self._end = PAGE_BYTES  # what follows was never handed out
        self._idle: dict[int, list[tuple[int, bool]]] = {}  # size -> offset, and whether it has its pages
        self._idle_bytes = 0
        # A finalizer may run at any point, even inside `take`, so it must not take the lock.
        self._returned: deque[tuple[int, int]] = deque()
        self._lock = threading.Lock()

    @classmethod
    def create(cls, max_bytes: int, max_idle_bytes: int = 64 << 20) -> SharedMemory | None:
        """Return new memory; None if the system refuses it, for example by a limit (ulimit -v, -f)."""
        try:
            return cls(max_bytes, max_idle_bytes)
        except OSError as error:
            logger.info("no memory that other processes can read: %s", error)
            return None

    def take(self, num_bytes: int) -> Bytes | None:
        """Return uninitialised bytes that start at a page boundary: shape (num_bytes,). None if all are taken."""
        size = up_to(max(1, num_bytes), PAGE_BYTES)
        with self._lock:
            self._sort_in(self._max_idle_bytes)
            free = self._idle.get(size)
            if free:
                offset, has_pages = free.pop()
                self._idle_bytes -= size * has_pages
            elif self._end + size <= self._size:
                offset, self._end = self._end, self._end + size
            else:
                return None
        # Every view refers to this array, so its finalizer runs only when no view is left.
        whole = np.frombuffer(self._map, np.uint8, size, offset)
        weakref.finalize(whole, self._returned.append, (offset, size)).atexit = False
        return whole[:num_bytes]

    def offset_of(self, value: np.ndarray) -> int | None:
        """Return where a contiguous array is in this memory; None if it is elsewhere."""
        offset = value.ctypes.data - self._base
        return offset if 0 <= offset < self._size else None

    def about(self) -> dict[str, Any]:
        """Return what another process needs to open this memory. Only processes that may read it should get this."""
        return {"process": os.getpid(), "file": self._fd, "size": self._size, "token": self._token.hex()}

    def trim(self, all_returned: bool) -> None:
        """Take back the parts that no array refers to any more, without waiting for the next `take`.

        Args:
            all_returned: Give the pages of all of them back to the system; else only those beyond the idle bytes.
        """
        with self._lock:
            self._sort_in(0 if all_returned else self._max_idle_bytes)

    def _sort_in(self, max_idle_bytes: int) -> None:
        while self._returned:
            offset, size = self._returned.popleft()
            is_kept = self._idle_bytes + size <= max_idle_bytes
            if not is_kept:
                self._map.madvise(mmap.MADV_REMOVE, offset, size)  # the system gets its pages back
            self._idle.setdefault(size, []).append((offset, is_kept))
            self._idle_bytes += size * is_kept


class Window:
    """The shared memory of another process, to read."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory

    @classmethod
    def open(cls, about: Mapping[str, Any]) -> Window | None:
        """Open a memory, given what its process announces; None if it is not on this machine, or cannot be read."""
        size = int(about["size"])
        try:
            fd = memory_files.open_other(int(about["process"]), int(about["file"]), _NAME, os.O_RDONLY)
        except OSError:
            return None
        try:
            found = os.fstat(fd)
            if found.st_uid != os.geteuid() or found.st_size != size:
                return None
            memory = mmap.mmap(fd, size, prot=mmap.PROT_READ)
        except OSError:
            return None
        finally:
            os.close(fd)
        is_it = hmac.compare_digest(memory[:_TOKEN_BYTES], bytes.fromhex(about["token"]))
        return cls(memory) if is_it else None

    def view(self, offset: int, num_bytes: int) -> Bytes:
        """Return bytes of the memory. They change when the other process changes them.

        Raises:
            ValueError: If they are not in the memory.
        """
        return np.frombuffer(self._memory, np.uint8, num_bytes, offset)
