"""What goes to and from a weight server: requests, and the bytes of a weight in pieces, packed where that pays.

A connection is one of host/links.py. A request is HEADER; its bytes follow in parts, like those of an answer. Both ends
know which bytes a request moves, so both know the size of each piece. A part of this size is the piece itself, and goes
straight from and to the weight's memory. A smaller one is packed (packing.py).
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from cerebras_tensorflow.runtime.host.links import Incoming
from cerebras_tensorflow.runtime.weight_store.buffers import Bytes
from cerebras_tensorflow.runtime.weight_store.packing import WIDTHS, pack, packed_bytes, unpack
from cerebras_tensorflow.runtime.weight_store.traffic import Traffic

PIECE_BYTES = 2 << 20
CHIEF, SERVER = b"chief", b"weight server"
"""What the two sides sign when they prove that they have the secret."""

HEADER = struct.Struct("<BQQQQBBd")


class Kind(IntEnum):
    """What a request asks for; server.py says what each takes and returns."""

    OPEN = 1
    READ = 2
    GATHER = 3
    WRITE = 4
    HOLD = 5
    RELEASE = 6
    END_HOLD = 7
    CLOSE = 8


@dataclass(frozen=True)
class Packing:
    """Which pieces a request packs.

    Attributes:
        width: Bytes of an element; 0 if no piece is packed.
        most_share: Share of a piece's bytes up to which it is packed; masks do not obey it.

    Raises:
        ValueError: If no piece can be packed so.
    """

    width: int = 0
    most_share: float = 0.0

    def __post_init__(self) -> None:
        if self.width not in (0, *WIDTHS) or not 0 <= self.most_share < 1:
            raise ValueError(
                f"no piece can be packed with elements of {self.width} bytes, up to a share of {self.most_share}"
            )


@dataclass(frozen=True)
class Request:
    """A request to a weight server.

    Attributes:
        kind: What it asks for.
        store: Number of the store.
        index: The weight.
        start, stop: Bytes of the weight, or what the kind says.
        is_held: Whether it asks for the weight in the snapshot.
        packing: Which pieces are packed.
    """

    kind: Kind
    store: int = 0
    index: int = 0
    start: int = 0
    stop: int = 0
    is_held: bool = False
    packing: Packing = field(default_factory=Packing)

    def to_bytes(self) -> bytes:
        """Return HEADER."""
        place = (self.store, self.index, self.start, self.stop)
        return HEADER.pack(self.kind, *place, self.is_held, self.packing.width, self.packing.most_share)

    @classmethod
    def from_bytes(cls, data: bytes) -> Request:
        """Return what `to_bytes` wrote.

        Raises:
            ValueError: If it is something else.
        """
        kind, store, index, start, stop, is_held, width, most_share = HEADER.unpack(data)
        return cls(Kind(kind), store, index, start, stop, bool(is_held), Packing(width, most_share))


def to_parts(data: Bytes, packing: Packing, traffic: Traffic | None = None) -> Iterator[Bytes]:
    """Yield the parts that carry some bytes of a weight.

    Args:
        data: The bytes.
        packing: Which pieces to pack.
        traffic: Counts the time of packing.
    """
    for low in range(0, data.size, PIECE_BYTES):
        piece = data[low : low + PIECE_BYTES]
        packed = None
        if packing.width and piece.size % (8 * packing.width) == 0:
            begin_s = time.thread_time()
            packed = pack(piece, packing.width, packing.most_share)
            if packed is not None and traffic is not None:
                traffic.count_packing(piece.size, begin_s)
        yield piece if packed is None else packed


def from_parts(arriving: Incoming, target: Bytes, packing: Packing, traffic: Traffic | None = None) -> int:
    """Write the bytes that arrive as `to_parts` made them.

    Args:
        arriving: The parts.
        target: Receives the bytes.
        packing: Of the request.
        traffic: Counts the time of unpacking.

    Returns:
        Bytes of the parts: fewer than the target has if a piece was packed.

    Raises:
        ValueError, IndexError: If a part is none of `to_parts`, or the parts stand for another number of bytes.
        LinkEndedError: If the connection has ended.
        OwnerFailedError: If the other side sends an error.
    """
    if arriving.size != target.size:
        raise ValueError(f"{arriving.size} bytes arrive, {target.size} were expected")
    moved = 0
    for low in range(0, target.size, PIECE_BYTES):
        piece = target[low : low + PIECE_BYTES]
        size = arriving.part_bytes()
        if size == piece.size:
            arriving.read(piece)
        elif packing.width and size < piece.size and piece.size % (8 * packing.width) == 0:
            _unpack(arriving.read(np.empty(size, np.uint8)), piece, packing.width, traffic)
        else:
            raise ValueError(f"a part has {size} bytes for a piece of {piece.size}")
        moved += size
    return moved


def _unpack(packed: Bytes, piece: Bytes, width: int, traffic: Traffic | None) -> None:
    if packed.size != packed_bytes(packed, piece.size // width, width):
        raise ValueError(f"a packed part has {packed.size} bytes for a piece of {piece.size}")
    begin_s = time.thread_time()
    unpack(packed, piece, width)
    if traffic is not None:
        traffic.count_packing(piece.size, begin_s)
