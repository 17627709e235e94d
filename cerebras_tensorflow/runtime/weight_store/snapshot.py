"""A snapshot of a store's weights at one moment. It stays readable while training changes the weights.

Taking a snapshot copies nothing. In memory, a weight that training replaces gets a new array, and the snapshot keeps
the old one. In a file, each block has two slots: while the snapshot needs one, new content goes to the other. So a
snapshot takes almost no time, and at most the size of the weights in memory or on disk.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from cerebras_tensorflow.errors import StoreError

PIECE_BYTES = 4 << 20


class StoreSnapshot:
    """The weights at one moment. Read and release each one, in any order and in any one thread, then close.

    Args:
        pieces: Yields a weight's bytes, like the method `pieces`.
        release: Called when a weight will not be read any more.
        close: Called once, by `close`.
    """

    def __init__(
        self,
        pieces: Callable[[int], Iterator[np.ndarray]],
        release: Callable[[int], object],
        close: Callable[[], object],
    ) -> None:
        self._pieces = pieces
        self._release = release
        self._close = close
        self._is_closed = False

    def pieces(self, index: int) -> Iterator[np.ndarray]:
        """Yield a weight's bytes in order, as flat uint8 arrays of a few megabytes. Each is valid until the next.

        Raises:
            StoreError: If the store cannot be read.
        """
        return self._pieces(index)

    def release(self, index: int) -> None:
        """Allow training to overwrite a weight, which will not be read any more."""
        self._release(index)

    def close(self) -> None:
        """Release all weights."""
        if not self._is_closed:  # a second call must not end a later snapshot
            self._is_closed = True
            self._close()


class OwnedElsewhere(Iterator[np.ndarray]):
    """A weight of a snapshot that another CSX owns: its bytes in pieces, or written into a checkpoint by the owner.

    Args:
        owner: Number of the CSX that owns it.
        pieces: Yields its bytes, as `StoreSnapshot.pieces`, and then releases the weight.
        write: Has the owner write the bytes where a text says, and returns the owner's text; empty: it cannot write
            there. It releases the weight after it has written.
        flush: Has the owner make durable what it has written.
    """

    def __init__(
        self,
        owner: int,
        pieces: Iterator[np.ndarray],
        write: Callable[[bytes], bytes],
        flush: Callable[[], object],
    ) -> None:
        self.owner = owner
        self.write = write
        self.flush = flush
        self._pieces = pieces

    def __next__(self) -> np.ndarray:
        return next(self._pieces)


class Lifetime:
    """Tracks whether a store and its snapshot are open. A store has at most one snapshot at a time.

    Args:
        free: Frees the storage. Called once, when both are closed.
    """

    def __init__(self, free: Callable[[], object] = lambda: None) -> None:
        self._free = free
        self._has_snapshot = False
        self._is_closed = False
        self._lock = threading.Lock()

    @property
    def is_closed(self) -> bool:
        """Whether the store was closed."""
        return self._is_closed

    @contextmanager
    def new_snapshot(self) -> Iterator[None]:
        """Take a snapshot in the block. If the block fails, there is no snapshot.

        Raises:
            StoreError: If the store is closed, or its last snapshot is still open.
        """
        with self._lock:
            if self._is_closed:
                raise StoreError("the weight store is closed")
            if self._has_snapshot:
                raise StoreError("the last snapshot has not been closed")
            self._has_snapshot = True
        try:
            yield
        except BaseException:
            self.end_snapshot()
            raise

    def end_snapshot(self) -> None:
        """Note the end of the snapshot."""
        with self._lock:
            self._has_snapshot = False
            is_over = self._is_closed
        if is_over:
            self._free()

    def close(self) -> None:
        """Note the end of the store. A second call does nothing."""
        with self._lock:
            is_over = not self._is_closed and not self._has_snapshot
            self._is_closed = True
        if is_over:
            self._free()
