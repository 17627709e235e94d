"""What a CSX takes from the memory of others on the same machine, in place of bytes through a connection.

The memory store of each CSX is in memory that the others can read (shared_memory.py). A reader gets the place of rows
instead of their bytes. Sums of gradients are copied once, into the memory of their sender, and the CSX that adds them
reads them there. The connection still carries the requests, so who waits for whom is the same.

What a reader holds is a view. The owner of a weight updates it in place, so the bytes of a view change with the update.
They do not while anyone uses them: all views belong to a pass over the model, and no CSX begins its update before all
have ended theirs. This is the barrier of `GradientSums.complete` (micro_batches/steps.py). The numbers of updates in
requests do not replace it: they only keep a reader from reading too early. A sum is used before its request is
answered.

On several machines, with other stores, and where one of two CSX cannot read the other's memory, the connection carries
the bytes too.
"""

from __future__ import annotations

import numpy as np

from cerebras_tensorflow.runtime.csx.peers import Peers, Request
from cerebras_tensorflow.runtime.weight_store.buffers import Bytes
from cerebras_tensorflow.runtime.weight_store.interface import WeightStore, as_bytes
from cerebras_tensorflow.runtime.weight_store.memory import MemoryStore
from cerebras_tensorflow.runtime.weight_store.shared_memory import SharedMemory

_ELSEWHERE = -1  # in place of an offset
CANNOT = np.ones(1, np.uint8)
"""Answer of a CSX that cannot read the memory of the sender."""


class Neighbours:
    """The memory that a CSX shares with others.

    Args:
        local: The store of this CSX.
    """

    def __init__(self, local: WeightStore) -> None:
        self.memory: SharedMemory | None = local.memory if isinstance(local, MemoryStore) else None
        self._blind: set[int] = set()  # CSX that cannot read this memory

    def read(self, peers: Peers, owner: int, request: Request, num_bytes: int) -> Bytes | None:
        """Return rows of a weight in the memory of its owner; None if they cannot be read there.

        Args:
            peers: The connections.
            owner: The owner.
            request: Asks the owner for their place.
            num_bytes: Their size.

        Raises:
            CollectiveError: If the owner failed.
        """
        window = peers.window(owner) if self.memory is not None else None
        if window is None:
            return None
        (offset,) = peers.ask(owner, request).view(np.int64).tolist()
        if offset == _ELSEWHERE:
            return None
        peers.count(0, num_bytes)
        return window.view(offset, num_bytes)

    def place(self, peers: Peers, values: Bytes) -> Bytes:
        """Return the answer to `read`: where rows are that this CSX owns."""
        offset = None if self.memory is None else self.memory.offset_of(values)
        if offset is not None:
            peers.count(values.nbytes, 0)
        return np.array([_ELSEWHERE if offset is None else offset], np.int64).view(np.uint8)

    def send(self, peers: Peers, others: list[int], request: Request, value: np.ndarray) -> list[int]:
        """Let other CSX take a value from the memory of this one; return those that cannot.

        Args:
            peers: The connections.
            others: Their numbers.
            request: Tells them to take it.
            value: The value. It does not change before the call returns.

        Raises:
            CollectiveError: If one of them failed.
        """
        if self.memory is None:
            return others
        near = [rank for rank in others if rank not in self._blind and peers.window(rank) is not None]
        place = self._placed(self.memory, as_bytes(value)) if near else None
        if place is None:
            return others
        about = np.array([peers.rank, self.memory.offset_of(place), place.nbytes], np.int64).view(np.uint8)
        for rank in near:
            if peers.ask(rank, request, about).size:  # CANNOT
                self._blind.add(rank)
            else:
                peers.count(place.nbytes, 0)
        return [rank for rank in others if rank not in near or rank in self._blind]

    def taken(self, peers: Peers, about: Bytes) -> Bytes | None:
        """Return the value that another CSX lets this one take; None if its memory cannot be read.

        Args:
            peers: The connections.
            about: The bytes of its request.
        """
        sender, offset, num_bytes = about.view(np.int64).tolist()
        window = peers.window(sender)
        if window is None:
            return None
        peers.count(0, num_bytes)
        return window.view(offset, num_bytes)

    @staticmethod
    def _placed(memory: SharedMemory, value: Bytes) -> Bytes | None:
        """Return the value in shared memory: where it is already, or a copy. None if there is no room."""
        if memory.offset_of(value) is not None:
            return value
        place = memory.take(value.nbytes)
        if place is not None:
            np.copyto(place, value)
        return place
