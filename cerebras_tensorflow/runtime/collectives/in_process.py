"""Ranks that are threads of one process."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from cerebras_tensorflow.errors import CollectiveError
from cerebras_tensorflow.runtime.collectives.interface import Bytes, Collectives


def make_group(size: int, limit_s: float = 60.0) -> list[Collectives]:
    """Make a group of threads; return the object of each rank.

    Args:
        size: Number of ranks.
        limit_s: Longest time that a call waits for the other ranks [s].
    """
    room = _Room(size, limit_s)
    return [_Thread(rank, room) for rank in range(size)]


class _Room:
    """The shared state of a group of threads.

    Args:
        size: Number of ranks.
        limit_s: Longest wait for the other ranks [s].
    """

    def __init__(self, size: int, limit_s: float) -> None:
        self.size = size
        self.limit_s = limit_s
        self.parts: list[Sequence[Bytes]] = [()] * size  # what each rank sends
        self._changed = threading.Condition()
        self._arrived: set[int] = set()
        self._round = 0
        self._failure: str | None = None

    def meet(self, rank: int) -> None:
        """Wait until all ranks are here.

        Raises:
            CollectiveError: If a rank aborted, or does not come in time.
        """
        with self._changed:
            if self._failure is not None:
                raise CollectiveError(self._failure)
            current = self._round
            self._arrived.add(rank)
            if len(self._arrived) == self.size:
                self._arrived.clear()
                self._round += 1
                self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._round != current or self._failure is not None, self.limit_s):
                missing = sorted(set(range(self.size)) - self._arrived)
                self._fail(f"rank {missing[0]} did not answer within {self.limit_s:g} s")
            if self._failure is not None and self._round == current:
                raise CollectiveError(self._failure)

    def check(self) -> None:
        """Raise an error if the group has failed.

        Raises:
            CollectiveError: If a rank aborted, left the group or did not come in time.
        """
        if self._failure is not None:
            raise CollectiveError(self._failure)

    def fail(self, reason: str) -> None:
        """Make the calls of all ranks fail."""
        with self._changed:
            self._fail(reason)

    def _fail(self, reason: str) -> None:
        self._failure = self._failure or reason
        self._changed.notify_all()


class _Thread(Collectives):
    """One thread of a group."""

    def __init__(self, rank: int, room: _Room) -> None:
        super().__init__(rank, room.size)
        self._room = room

    def check(self) -> None:
        """Raise an error if the group has failed."""
        self._room.check()

    def abort(self, reason: str) -> None:
        """End the group."""
        self._room.fail(f"rank {self.rank} failed: {reason}")

    def close(self) -> None:
        """Leave the group."""
        self._room.fail(f"rank {self.rank} has left the group")

    def _exchange(self, outgoing: Sequence[Bytes], incoming: Sequence[Bytes]) -> None:
        self._room.parts[self.rank] = outgoing
        self._room.meet(self.rank)
        wrong: str | None = None
        for rank, place in enumerate(incoming):
            part = self._room.parts[rank][self.rank]
            if part.nbytes != place.nbytes:
                wrong = f"rank {rank} sends {part.nbytes} B to rank {self.rank}, which expects {place.nbytes} B"
            else:
                np.copyto(place, part)
        if wrong is not None:
            self._room.fail(wrong)
        self._room.meet(self.rank)
