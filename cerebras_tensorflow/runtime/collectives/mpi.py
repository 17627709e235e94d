"""Ranks that MPI has started. mpi4py is imported on use: a run on one CSX needs no MPI."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from typing import Any

from cerebras_tensorflow.errors import CollectiveError, SettingsError
from cerebras_tensorflow.runtime.collectives.checked import CheckedCollectives
from cerebras_tensorflow.runtime.collectives.interface import Bytes

_LONGEST_PAUSE_S = 5e-3
_SHARE_OF_PAUSE = 0.02  # of the time waited so far: the processor is free for those who compute
_TAG = 17
_CANCEL_LIMIT_S = 1.0

# Transfers that a rank gave up. MPI may use their memory until the process ends, and a request keeps its memory alive.
_GIVEN_UP: list[Any] = []


def join_world(limit_s: float = 60.0) -> MpiRank:
    """Return this process's rank in the group of all processes that MPI has started.

    Args:
        limit_s: Longest time that a call waits for the other ranks [s]; math.inf: no limit.

    Raises:
        SettingsError: If mpi4py or an MPI library is not installed.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py finds no MPI library
        raise missing(error) from error
    return MpiRank(MPI, limit_s)


def missing(reason: object) -> SettingsError:
    """Return the error of a run that needs MPI where it is not installed."""
    return SettingsError(
        f"more than one CSX needs MPI ({reason}): pip install cerebras_tensorflow[mpi], or set num_csx to 1"
    )


class MpiRank(CheckedCollectives):
    """One process of a group.

    `close` does not free the communicator, which would wait for the other ranks. MPI frees it when the process ends.
    """

    def __init__(self, mpi: Any, limit_s: float) -> None:
        self._mpi = mpi
        self._world = mpi.COMM_WORLD.Dup()  # other users of MPI in this process cannot get our messages
        self._world.Set_errhandler(mpi.ERRORS_RETURN)
        super().__init__(self._world.Get_rank(), self._world.Get_size(), limit_s)

    def abort(self, reason: str) -> None:
        """End all ranks: MPI stops their processes. Does not return."""
        print(f"rank {self.rank} on {self._mpi.Get_processor_name()} failed: {reason}", file=sys.stderr, flush=True)
        self._world.Abort(1)

    def finish(self) -> None:
        """Leave the group together."""
        self._mpi.Finalize()

    def _transfer(self, outgoing: Sequence[Bytes], incoming: Sequence[Bytes]) -> None:
        others = [rank for rank in range(self.size) if rank != self.rank]
        pending: dict[tuple[str, int], Any] = {}
        try:
            for rank in others:
                pending["to", rank] = self._world.Isend(outgoing[rank], rank, _TAG)
            for rank in others:
                pending["from", rank] = self._world.Irecv(incoming[rank], rank, _TAG)
            self._wait(pending)
        except self._mpi.Exception as error:
            raise CollectiveError(f"rank {self.rank} lost its connection to the others: {error}") from error
        finally:
            self._give_up(pending)

    def _wait(self, pending: dict[tuple[str, int], Any]) -> None:
        """Wait for transfers, and remove each from `pending` when it is done.

        Raises:
            CollectiveError: If a rank does not answer in time.
        """
        begin = time.monotonic()
        pause = 0.0
        while pending:
            done = [key for key, request in pending.items() if request.Test()]
            for key in done:
                del pending[key]
            if done:
                begin, pause = time.monotonic(), 0.0
            elif time.monotonic() - begin > self._limit_s:
                late = min(rank for _, rank in pending)
                raise CollectiveError(f"rank {late} did not answer within {self._limit_s:g} s")
            elif pending:
                time.sleep(pause)
                pause = min(_LONGEST_PAUSE_S, _SHARE_OF_PAUSE * (time.monotonic() - begin))

    def _give_up(self, pending: dict[tuple[str, int], Any]) -> None:
        """Cancel what was not done, so that a late message does not change memory that the caller uses again."""
        _GIVEN_UP.extend(pending.values())
        # Only receives: to cancel a send may need an answer of the other rank.
        receives = [request for (direction, _), request in pending.items() if direction == "from"]
        for request in receives:
            with contextlib.suppress(self._mpi.Exception):
                request.Cancel()
        # A message that is on its way in cannot be cancelled, and may never end.
        end = time.monotonic() + _CANCEL_LIMIT_S
        for request in receives:
            with contextlib.suppress(self._mpi.Exception):
                while not request.Test() and time.monotonic() < end:
                    time.sleep(_LONGEST_PAUSE_S)
