"""Buffers for weights that move between store and step: page-aligned, in huge pages if possible, and reused.

The system faults in and zeroes each page of new memory. This takes several times as long as reading the page from a
fast disk. Measured here: 2 GB/s with page faults, 10 GB/s in huge pages, and more with reused memory. When TensorFlow
frees a weight, the next weight of the same size gets its memory.
"""

from __future__ import annotations

import mmap
import threading
import weakref
from collections import OrderedDict, deque
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]

PAGE_BYTES = 4096
_HUGE_FROM_BYTES = 4 << 20
_MAPPED_FROM_BYTES = 256 << 10


def aligned_buffer(num_bytes: int) -> np.ndarray:
    """Return uninitialised bytes that start at a page boundary: shape (num_bytes,), uint8."""
    raw = np.empty(num_bytes + PAGE_BYTES, np.uint8)
    start = -raw.ctypes.data % PAGE_BYTES
    return raw[start : start + num_bytes]


def private_copy(value: np.ndarray) -> np.ndarray:
    """Return a copy of an array at a page boundary."""
    copy = aligned_buffer(value.nbytes).view(value.dtype).reshape(value.shape)
    np.copyto(copy, value)
    return copy


def up_to(num_bytes: int, unit: int) -> int:
    """Return a size rounded up to whole units.

    >>> up_to(4097, 4096)
    8192
    """
    return -(-num_bytes // unit) * unit


class Buffers:
    """Hands out buffers, and reuses each one when no array refers to it any more.

    Args:
        max_idle_bytes: Most bytes of free buffers to keep. Beyond that, the oldest ones go back to the system.
    """

    def __init__(self, max_idle_bytes: int = 64 << 20) -> None:
        self._max_idle_bytes = max_idle_bytes
        self._idle: OrderedDict[int, list[mmap.mmap]] = OrderedDict()  # by size; the most recently used size is last
        self._idle_bytes = 0
        # Returned buffers. A finalizer may run at any point, even inside `take`, so it must not take the lock.
        self._returned: deque[mmap.mmap] = deque()
        self._lock = threading.Lock()

    def take(self, num_bytes: int) -> np.ndarray:
        """Return uninitialised bytes that start at a page boundary: shape (num_bytes,), uint8."""
        if num_bytes < _MAPPED_FROM_BYTES:
            return aligned_buffer(num_bytes)
        size = up_to(num_bytes, PAGE_BYTES)
        with self._lock:
            self._sort_in()
            free = self._idle.get(size)
            mapping = free.pop() if free else None
            if mapping is not None:
                self._idle_bytes -= size
        if mapping is None:
            mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if size >= _HUGE_FROM_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
                mapping.madvise(mmap.MADV_HUGEPAGE)
        # Every view refers to this array, so its finalizer runs only when no view is left.
        whole = np.frombuffer(mapping, np.uint8)
        weakref.finalize(whole, self._returned.append, mapping).atexit = False
        return whole[:num_bytes]

    @property
    def idle_bytes(self) -> int:
        """Bytes of free buffers that are kept."""
        with self._lock:
            self._sort_in()
            return self._idle_bytes

    def close(self) -> None:
        """Free the idle buffers."""
        with self._lock:
            self._sort_in()
            self._idle.clear()
            self._idle_bytes = 0

    def _sort_in(self) -> None:
        while self._returned:
            mapping = self._returned.popleft()
            size = len(mapping)
            if size > self._max_idle_bytes:
                continue
            self._idle.setdefault(size, []).append(mapping)
            self._idle.move_to_end(size)
            self._idle_bytes += size
        while self._idle_bytes > self._max_idle_bytes:
            size, free = next(iter(self._idle.items()))
            if free:
                free.pop(0)
                self._idle_bytes -= size
            if not free:
                del self._idle[size]
