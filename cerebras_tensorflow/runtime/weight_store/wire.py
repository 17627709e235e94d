"""The bytes of a weight on the wire to and from a weight server: in pieces, packed where that pays.

Both ends know which bytes a call moves, so both know the size of each piece. A message of this size is the piece
itself. A smaller one is packed (packing.py).
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from cerebras_tensorflow.runtime.weight_store.buffers import Bytes
from cerebras_tensorflow.runtime.weight_store.packing import WIDTHS, pack, packed_bytes, unpack
from cerebras_tensorflow.runtime.weight_store.traffic import Traffic

PIECE_BYTES = 2 << 20
_FIELDS = struct.Struct("<Qd")


@dataclass(frozen=True)
class Packing:
    """Which pieces a call packs.

    Attributes:
        width: Bytes of an element; 0 if no piece is packed.
        most_share: Share of a piece's bytes up to which it is packed.
    """

    width: int = 0
    most_share: float = 0.0

    def to_bytes(self) -> bytes:
        """Return the bytes that follow the header of a call; none if no piece is packed."""
        return _FIELDS.pack(self.width, self.most_share) if self.width else b""

    @classmethod
    def from_bytes(cls, data: bytes) -> Packing:
        """Return what `to_bytes` wrote.

        Raises:
            ValueError: If it is something else.
        """
        if not data:
            return cls()
        if len(data) != _FIELDS.size:
            raise ValueError(f"expected 0 or {_FIELDS.size} bytes for the packing, not {len(data)}")
        width, most_share = _FIELDS.unpack(data)
        if width not in WIDTHS or not 0 <= most_share < 1:
            raise ValueError(f"no piece can be packed with elements of {width} bytes, up to a share of {most_share}")
        return cls(width, most_share)


def to_messages(data: Bytes, packing: Packing, traffic: Traffic | None = None) -> Iterator[bytes]:
    """Yield the messages that carry some bytes of a weight.

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
        yield (piece if packed is None else packed).tobytes()


def from_messages(
    messages: Iterable[bytes], target: Bytes, packing: Packing, traffic: Traffic | None = None
) -> tuple[int, int]:
    """Write the bytes that messages carry.

    Args:
        messages: From `to_messages`.
        target: Receives the bytes.
        packing: Of the call.
        traffic: Counts the time of unpacking.

    Returns:
        Bytes written to the target, at most its size, and bytes of the messages. They differ if a piece was packed.

    Raises:
        ValueError, IndexError: If a message is none of `to_messages`, or carries more than the target takes.
    """
    at = moved = 0
    for message in messages:
        piece = target[at : at + PIECE_BYTES]
        if len(message) == piece.size:
            piece[:] = np.frombuffer(message, np.uint8)
        else:
            unpack_message(message, piece, packing, traffic)
        at += piece.size
        moved += len(message)
    return at, moved


def unpack_message(message: bytes, piece: Bytes, packing: Packing, traffic: Traffic | None = None) -> None:
    """Write the piece that a smaller message carries.

    Raises:
        ValueError, IndexError: If the message is none of `to_messages`.
    """
    packed, width = np.frombuffer(message, np.uint8), packing.width
    is_packed = width and packed.size < piece.size and piece.size % (8 * width) == 0
    if not is_packed or packed.size != packed_bytes(packed, piece.size // width, width):
        raise ValueError(f"a message has {packed.size} bytes for a piece of {piece.size}")
    begin_s = time.thread_time()
    unpack(packed, piece, width)
    if traffic is not None:
        traffic.count_packing(piece.size, begin_s)
