"""The weights of a store as they were at one moment, readable while training goes on to change them.

Nothing is copied when a snapshot is taken. In memory, a weight that training replaces gets a new array and the snapshot
keeps the old one. In a file, each block has two places: as long as the snapshot needs the one, new content goes to the
other. So a snapshot costs at most the weights' size once more, of memory or of disk, and next to no time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np

PIECE_BYTES = 4 << 20


class StoreSnapshot(ABC):
    """Read and release each weight, in any order, from any one thread; close at the end."""

    @abstractmethod
    def pieces(self, index: int) -> Iterator[np.ndarray]:
        """Yield a weight's bytes in order, as flat uint8 arrays of a few megabytes; each is valid until the next.

        Raises:
            StoreError: If the store cannot be read.
        """

    @abstractmethod
    def release(self, index: int) -> None:
        """Say that a weight will not be read any more, so that training may write over it."""

    @abstractmethod
    def close(self) -> None:
        """Release all weights."""
