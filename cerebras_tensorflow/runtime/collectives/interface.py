"""The interface of a group of ranks: it moves bytes between them, and does not add.

A reduction of MPI or NCCL may add in any order, so its bits may depend on the number of ranks. Therefore this interface
only moves byte ranges, and `sums.py` adds them in a fixed order. All ranks make the same calls in the same order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]


class Collectives(ABC):
    """One rank of a group.

    Args:
        rank: Number of this rank.
        size: Number of ranks.

    Attributes:
        bytes_sent, bytes_received: Bytes that this rank has sent to other ranks, and received from them.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.bytes_sent = 0
        self.bytes_received = 0

    def exchange(self, outgoing: Sequence[Bytes], incoming: Sequence[Bytes]) -> None:
        """Send outgoing[k] to rank k, and receive what rank k has for this rank into incoming[k].

        Args:
            outgoing: A part for each rank. Do not change them before the call returns.
            incoming: Contiguous memory for the part of each rank, as large as that part.

        Raises:
            ValueError: If the number of parts is not the number of ranks.
            CollectiveError: If a rank failed, did not answer in time, or sends another number of bytes.
        """
        if len(outgoing) != self.size or len(incoming) != self.size:
            raise ValueError(f"{len(outgoing)} and {len(incoming)} parts for {self.size} ranks")
        self._exchange(outgoing, incoming)
        self.bytes_sent += sum(part.nbytes for rank, part in enumerate(outgoing) if rank != self.rank)
        self.bytes_received += sum(part.nbytes for rank, part in enumerate(incoming) if rank != self.rank)

    def broadcast(self, data: Bytes, root: int) -> None:
        """Copy the bytes of one rank into the array of every other rank.

        The root sends a range to each rank, and each rank then sends its range to all. So every rank sends about as
        much as it receives, on any number of ranks.
        """
        bounds = split_evenly(data.nbytes, self.size)
        ranges = [data[bounds[rank] : bounds[rank + 1]] for rank in range(self.size)]
        nothing = data[:0]
        is_root = self.rank == root
        self.exchange(
            ranges if is_root else [nothing] * self.size,
            [ranges[self.rank] if rank == root else nothing for rank in range(self.size)],
        )
        # The root has all ranges already.
        self.exchange(
            [nothing if rank == root else ranges[self.rank] for rank in range(self.size)],
            [nothing if is_root else ranges[rank] for rank in range(self.size)],
        )

    def allgather(self, ranges: Sequence[Bytes]) -> None:
        """Copy range k of rank k into range k of every rank."""
        self.exchange([ranges[self.rank]] * self.size, ranges)

    def barrier(self) -> None:
        """Wait until every rank calls this."""
        token = np.zeros(1, np.uint8)
        self._exchange([token] * self.size, [np.zeros(1, np.uint8) for _ in range(self.size)])

    def check(self) -> None:  # noqa: B027 - most groups learn of a failure when they exchange bytes
        """Raise a CollectiveError if a rank is known to have failed."""

    @abstractmethod
    def abort(self, reason: str) -> None:
        """End the group. Each other rank's current or next call raises an error that names this rank and the reason."""

    @abstractmethod
    def close(self) -> None:
        """Leave the group. The other ranks must not wait for this one any more."""

    @abstractmethod
    def _exchange(self, outgoing: Sequence[Bytes], incoming: Sequence[Bytes]) -> None:
        """Do what `exchange` promises; it has already checked the arguments."""


def split_evenly(total: int, parts: int, unit: int = 1) -> list[int]:
    """Return the bounds of consecutive parts of a range, in whole units, as even as possible.

    >>> split_evenly(10, 4), split_evenly(10, 2, unit=4)
    ([0, 2, 5, 7, 10], [0, 4, 10])
    """
    units = -(-total // unit)
    return [*(unit * (units * part // parts) for part in range(parts)), total]
