"""Ranks that are processes: each call first compares all sizes, and after an error the group stays failed."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

import numpy as np

from cerebras_tensorflow.errors import CollectiveError
from cerebras_tensorflow.runtime.collectives.interface import Bytes, Collectives


class CheckedCollectives(Collectives):
    """One process of a group.

    Args:
        rank: Number of this rank.
        size: Number of ranks.
        limit_s: Longest time that a call waits for the other ranks [s]; math.inf: no limit.
    """

    def __init__(self, rank: int, size: int, limit_s: float = math.inf) -> None:
        super().__init__(rank, size)
        self._limit_s = limit_s
        self._failure: str | None = None

    @abstractmethod
    def finish(self) -> None:
        """Leave the group together: all ranks call this at the end of an orderly run."""

    @abstractmethod
    def _transfer(self, outgoing: Sequence[Bytes], incoming: Sequence[Bytes]) -> None:
        """Move the parts between this rank and the others, within the time limit.

        Raises:
            CollectiveError: If a rank does not answer in time, or is gone.
        """

    def close(self) -> None:
        """Leave the group."""
        self._failure = self._failure or f"rank {self.rank} has left the group"

    def _exchange(self, outgoing: Sequence[Bytes], incoming: Sequence[Bytes]) -> None:
        if self._failure is not None:
            raise CollectiveError(self._failure)
        try:
            self._check_sizes(outgoing, incoming)
            self._move(outgoing, incoming)
        except CollectiveError as error:
            # The ranks are no longer at the same call, so a message could be taken for one of another call.
            self._failure = str(error)
            raise

    def _check_sizes(self, outgoing: Sequence[Bytes], incoming: Sequence[Bytes]) -> None:
        """Tell all ranks all sizes, so that every rank finds the same error, or none.

        Raises:
            CollectiveError: If a rank sends another number of bytes than is expected.
        """
        own = np.array([[part.nbytes for part in parts] for parts in (outgoing, incoming)], np.int64)
        sizes = np.zeros((self.size, *own.shape), np.int64)  # by rank: what it sends, what it expects
        places = [each.reshape(-1).view(np.uint8) for each in sizes]
        self._move([own.reshape(-1).view(np.uint8)] * self.size, places)
        sent, expected = sizes[:, 0], sizes[:, 1].T
        wrong = np.argwhere(sent != expected)
        if len(wrong):
            sender, receiver = wrong[0]
            raise CollectiveError(
                f"rank {sender} sends {sent[sender, receiver]} B to rank {receiver}, which expects "
                f"{expected[sender, receiver]} B"
            )

    def _move(self, outgoing: Sequence[Bytes], incoming: Sequence[Bytes]) -> None:
        np.copyto(incoming[self.rank], outgoing[self.rank])
        self._transfer(outgoing, incoming)
