"""A checkpoint of several CSX that all hold the same variables: each copies and writes a share of the large ones.

Between two steps the first CSX tells each other one which variables to copy. If one of them has too little memory, none
keeps copies, and training waits for the checkpoint. While training goes on, the first CSX asks the others to write the
copies into the checkpoint.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from functools import partial

import numpy as np

from cerebras_tensorflow.errors import CollectiveError, StoreError
from cerebras_tensorflow.graph.program import WeightSpec, dtype_from_name
from cerebras_tensorflow.runtime.collectives.interface import Collectives
from cerebras_tensorflow.runtime.csx.checkpoint_files import CheckpointFiles
from cerebras_tensorflow.runtime.csx.messages import Message, send
from cerebras_tensorflow.runtime.csx.peers import Answer, Peers, Request
from cerebras_tensorflow.runtime.host.memory import free_memory_bytes
from cerebras_tensorflow.runtime.session_snapshot import Elsewhere
from cerebras_tensorflow.runtime.weight_store.buffers import Bytes
from cerebras_tensorflow.runtime.weight_store.interface import as_bytes
from cerebras_tensorflow.runtime.weight_store.shared_memory import SharedMemory
from cerebras_tensorflow.runtime.weight_store.snapshot import PIECE_BYTES, OwnedElsewhere
from cerebras_tensorflow.units import format_bytes

COPY = "copy"  # kind of a message: copy these variables, and keep the copies until they are written
_MIN_BYTES = 1 << 20  # smaller variables take the first CSX less time than asking
_MEMORY_SHARE = 0.5  # of free memory, for the copies of a save

Copies = Mapping[str, np.ndarray]
Connect = Callable[[Answer, Iterable[int], SharedMemory | None], Peers]


class Kind(IntEnum):
    """The kinds of requests for copies. `index` is the place of a variable in the message that asked for the copies."""

    SAVE = 1  # write a copy into a checkpoint
    HELD = 2  # read a copy
    FLUSH = 3  # make durable what was written
    END = 4  # the copies are not needed any more
    ROOM = 5  # the answer is why there is no room for the copies, or empty


class CopyShares:
    """The first CSX's side.

    Args:
        ranks: The group of all CSX.
        connect: Makes the connections to the others, as for SharedStore.
    """

    def __init__(self, ranks: Collectives, connect: Connect) -> None:
        self._ranks = ranks
        self._peers = connect(_refused, (), None)
        self._number = 0  # of the last copies
        self._is_idle = threading.Event()
        self._is_idle.set()

    @property
    def has_copied(self) -> bool:
        """Whether the others have copied their shares before. They keep the memory, unless they have little left."""
        return self._number > 0

    def of_others(self, specs: Sequence[WeightSpec]) -> Sequence[Sequence[str]]:
        """Return the names that each CSX copies; none for the first one, which copies the rest."""
        shares: list[list[str]] = [[] for _ in range(self._ranks.size)]
        sizes = [0] * self._ranks.size
        for spec in sorted(specs, key=lambda spec: (-spec.num_bytes, spec.name)):
            rank = sizes.index(min(sizes)) if _is_shared(spec) else 0
            sizes[rank] += spec.num_bytes
            shares[rank].append(spec.name)
        return [[], *shares[1:]]

    def copy(self, specs: Sequence[WeightSpec]) -> Elsewhere:
        """Have each other CSX copy its share of some variables. Call it between two steps, with no copies open.

        Args:
            specs: The variables that have the same values on all CSX.

        Raises:
            StoreError: If another CSX has no room for its copies.
        """
        shares = self.of_others(specs)
        if not any(shares):
            return Elsewhere()
        self._number += 1
        send(self._ranks, [Message(COPY, {"number": self._number, "names": list(names)}) for names in shares])
        values = {
            name: self._elsewhere(rank, place, self._number)
            for rank, names in enumerate(shares)
            for place, name in enumerate(names)
        }
        others = range(1, self._ranks.size)
        refusals = {rank: self._peers.ask(rank, Request(Kind.ROOM, after=self._number)).tobytes() for rank in others}
        self._is_idle.clear()
        agreed = [rank for rank in others if not refusals[rank]]
        if len(agreed) < len(others):
            self._end(self._number, agreed)
            reasons = [f"rank {rank}: {reason.decode()}" for rank, reason in refusals.items() if reason]
            raise StoreError("; ".join(reasons))
        return Elsewhere(values, partial(self._end, self._number, others))

    def wait(self) -> None:
        """Wait until the copies, if there are any, are not needed any more."""
        self._is_idle.wait()

    def close(self) -> None:
        """End the connections."""
        self._peers.close()

    def _elsewhere(self, rank: int, place: int, number: int) -> OwnedElsewhere:
        def ask(kind: Kind, data: bytes = b"") -> bytes:
            return self._peers.ask(rank, Request(kind, place, after=number), np.frombuffer(data, np.uint8)).tobytes()

        pieces = self._peers.stream(rank, Request(Kind.HELD, place, after=number), PIECE_BYTES)
        return OwnedElsewhere(rank, pieces, partial(ask, Kind.SAVE), partial(ask, Kind.FLUSH))

    def _end(self, number: int, others: Iterable[int]) -> None:
        try:
            for rank in others:
                self._peers.ask(rank, Request(Kind.END, after=number))
        finally:
            self._is_idle.set()


class HeldCopies:
    """The side of another CSX.

    Args:
        rank: Number of this CSX.
        connect: As for CopyShares.
        checkpoints: Writes checkpoints for the first CSX.
    """

    def __init__(self, rank: int, connect: Connect, checkpoints: CheckpointFiles) -> None:
        self._rank = rank
        self._checkpoints = checkpoints
        self._asked = 0  # number of the last copies that this CSX has or has not room for
        self._refusal = ""
        self._number = 0
        self._copies: list[np.ndarray] = []
        self._release: Callable[[], object] = lambda: None
        self._is_closed = False
        self._changed = threading.Condition()
        self._peers = connect(self._answer, (), None)

    def has_room(self, message: Message, needed_bytes: int) -> bool:
        """Return whether there is memory for copies, and tell the first CSX.

        Args:
            message: What asks for them.
            needed_bytes: Memory that they allocate.
        """
        free = free_memory_bytes()
        with self._changed:
            self._asked = message.values["number"]
            self._refusal = ""
            if needed_bytes > _MEMORY_SHARE * free:
                self._refusal = (
                    f"its copies would take {format_bytes(needed_bytes)} of {format_bytes(free)} free memory"
                )
            self._changed.notify_all()
        return not self._refusal

    def hold(self, message: Message, copies: Copies, release: Callable[[], object]) -> None:
        """Keep copies until the first CSX has no more need of them.

        Args:
            message: What asked for them.
            copies: Name -> copy.
            release: Called when they are not needed any more.
        """
        with self._changed:
            self._number = message.values["number"]
            self._copies = [copies[name] for name in message.values["names"]]
            self._release = release
            self._changed.notify_all()

    def close(self) -> None:
        """End the connections."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._peers.close()

    def _answer(self, request: Request, data: Bytes) -> tuple[int, Iterable[Bytes]]:
        """Answer a request of the first CSX: return the size of the answer, and its parts."""
        if request.kind == Kind.ROOM:
            refusal = self._answer_about_room(request.after)
            return refusal.nbytes, (refusal,)
        with self._changed:
            self._changed.wait_for(lambda: self._number >= request.after or self._is_closed)
            if self._number != request.after:
                raise CollectiveError(f"rank {self._rank} does not hold the copies number {request.after}")
        if request.kind == Kind.END:
            self._copies = []
            self._release()
            self._checkpoints.close()
            return 0, ()
        if request.kind == Kind.FLUSH:
            self._checkpoints.flush()
            return 0, ()
        copy = as_bytes(self._copies[request.index])
        if request.kind == Kind.HELD:
            return copy.nbytes, _pieces(copy)
        written = np.frombuffer(self._checkpoints.write(data.tobytes(), _pieces(copy)), np.uint8)
        return written.nbytes, (written,)

    def _answer_about_room(self, number: int) -> Bytes:
        with self._changed:
            self._changed.wait_for(lambda: self._asked >= number or self._is_closed)
            if self._asked != number:
                raise CollectiveError(f"rank {self._rank} was not asked for the copies number {number}")
            return np.frombuffer(self._refusal.encode(), np.uint8)


def _is_shared(spec: WeightSpec) -> bool:
    return spec.is_fixed and spec.num_bytes >= _MIN_BYTES and dtype_from_name(spec.dtype) != np.dtype(object)


def _pieces(copy: Bytes) -> Iterator[Bytes]:
    for start in range(0, copy.nbytes, PIECE_BYTES):
        yield copy[start : start + PIECE_BYTES]


def _refused(request: Request, _: Bytes) -> tuple[int, Iterable[Bytes]]:
    raise CollectiveError(f"the first CSX answers no requests for copies (kind {request.kind})")
