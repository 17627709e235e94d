"""Packs the zeros of a piece of a weight: where the other elements are, then these elements.

Zero means that all bits are zero, so -0.0 is kept and every bit of a value comes back. There are three forms:

- positions, two bytes for each element, if at most a quarter of the elements are not zero,
- otherwise a bit for each element of the piece,
- if the elements are bytes, all 0 or 1, as those of a mask are: a bit for each, and no values.

Measured on one core for float32, in ns per byte of the piece:

| zeros | packed bytes | packing | unpacking |
|---|---|---|---|
| 50 % | 53 % | 0.20 | 0.23 |
| 75 % | 38 % | 0.17 | 0.13 |
| 90 % | 15 % | 0.16 | 0.06 |

A disk of 1 GB/s takes 1 ns per byte. So packing pays there above 29 % of zeros. On a fast disk it pays above a larger
share of zeros, which the store measures (traffic.py). A mask takes 12.5 % with any share of zeros, 0.03 ns to pack and
0.06 ns to unpack, so it pays on any disk.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from cerebras_tensorflow.runtime.weight_store.buffers import Bytes, aligned_buffer
from cerebras_tensorflow.runtime.weight_store.traffic import MOST_PACKED_SHARE

PIECE_BYTES = 1 << 20  # moved at a time, and of a pack: fits into a core's cache while its checksums are computed
_MOST_POSITIONS_SHARE = 0.25  # of a piece's elements
_HEADER_BYTES = 8  # number of elements that are not zero; of a mask, _MASK
_MASK = np.uint64(2**64 - 1)
_CHUNK = 1 << 16  # elements that a position of two bytes can tell apart
_SAMPLES = 1024
_UNSIGNED: dict[int, npt.DTypeLike] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
WIDTHS = tuple(_UNSIGNED)
"""Bytes of an element that can be packed."""


def pack(piece: Bytes, width: int, most_share: float = MOST_PACKED_SHARE) -> Bytes | None:
    """Return a piece in packed form; None if that does not pay.

    Args:
        piece: The bytes. Their number is a multiple of eight elements.
        width: Bytes of an element: 1, 2, 4 or 8.
        most_share: Share of the piece's bytes above which a packed piece does not pay. A mask, of bytes 0 and 1, is
            packed if that makes it smaller, whatever this share.

    >>> packed = pack(np.zeros(64, np.uint8), 4)
    >>> packed.size
    12
    """
    if width == 1 and piece.max(initial=0) <= 1:
        packed: Bytes = np.concatenate([np.array([_MASK]).view(np.uint8), np.packbits(piece)])
        return packed if packed.size < piece.size else None
    elements = piece.view(_UNSIGNED[width])
    sample = elements[:: max(1, elements.size // _SAMPLES)]
    if np.count_nonzero(sample) > 1.2 * most_share * sample.size:
        return None
    is_used = elements != 0
    places = _places(is_used)
    parts: list[npt.NDArray[Any]] = [np.array([places.size], np.uint64)]
    if _has_positions(places.size, elements.size):
        cuts = np.searchsorted(places, np.arange(_CHUNK, elements.size + _CHUNK, _CHUNK))
        parts += [cuts.astype(np.uint32), places.astype(np.uint16)]
    else:
        parts.append(np.packbits(is_used))
    if sum(part.nbytes for part in parts) + places.size * width > most_share * piece.size:
        return None
    return np.concatenate([part.view(np.uint8) for part in (*parts, elements.take(places))])


def packed_bytes(packed: Bytes, num_elements: int, width: int) -> int:
    """Return the size of a packed piece, from its first eight bytes.

    Args:
        packed: What `pack` returned; bytes after it do not matter.
        num_elements: Elements of the piece.
        width: Bytes of an element.
    """
    count = int(packed[:_HEADER_BYTES].view(np.uint64)[0])
    if width == 1 and count == _MASK:
        return _HEADER_BYTES + num_elements // 8
    if _has_positions(count, num_elements):
        return _HEADER_BYTES + 4 * -(-num_elements // _CHUNK) + (2 + width) * count
    return _HEADER_BYTES + num_elements // 8 + width * count


def unpack(packed: Bytes, piece: Bytes, width: int) -> None:
    """Write the piece that was packed.

    Args:
        packed: What `pack` returned; bytes after it do not matter.
        piece: Receives the bytes.
        width: Bytes of an element.
    """
    elements = piece.view(_UNSIGNED[width])
    count = int(packed[:_HEADER_BYTES].view(np.uint64)[0])
    if width == 1 and count == _MASK:
        bits = packed[_HEADER_BYTES : _HEADER_BYTES + elements.size // 8]
        for start in range(0, elements.size, _CHUNK):  # small arrays: a large one would be new memory each time
            elements[start : start + _CHUNK] = np.unpackbits(bits[start // 8 : (start + _CHUNK) // 8])
        return
    elements[:] = 0
    if not _has_positions(count, elements.size):
        begin = _HEADER_BYTES + elements.size // 8
        places = _places(np.unpackbits(packed[_HEADER_BYTES:begin]).view(np.bool_))
        elements[places] = _values(packed, begin, count, width)
        return
    places_at = _HEADER_BYTES + 4 * -(-elements.size // _CHUNK)
    cuts = packed[_HEADER_BYTES:places_at].view(np.uint32).tolist()
    positions = packed[places_at : places_at + 2 * count].view(np.uint16)
    values = _values(packed, places_at + 2 * count, count, width)
    for number, (start, stop) in enumerate(zip([0, *cuts], cuts, strict=False)):
        elements[number * _CHUNK : (number + 1) * _CHUNK][positions[start:stop]] = values[start:stop]


def _places(is_used: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp]:
    """Return the positions of True.

    NumPy takes four times as long if at most a tenth is True. In that case elements that are True are added first.
    """
    if np.count_nonzero(is_used) > 0.1 * is_used.size:
        return np.flatnonzero(is_used)
    end = np.ones(is_used.size // 8 + 1, np.bool_)
    return np.flatnonzero(np.concatenate([is_used, end]))[: -end.size]


def _has_positions(count: int, num_elements: int) -> bool:
    return count <= _MOST_POSITIONS_SHARE * num_elements


def _values(packed: Bytes, start: int, count: int, width: int) -> npt.NDArray[Any]:
    """Return the values, copied where the dtype needs another alignment."""
    return np.frombuffer(packed[start : start + count * width].tobytes(), _UNSIGNED[width])


class _Buffers(threading.local):
    """Page-aligned buffers of each thread for one piece: packed, and unpacked."""

    def __init__(self) -> None:
        self._packed = aligned_buffer(PIECE_BYTES)
        self._unpacked = aligned_buffer(PIECE_BYTES)

    def packed_of(self, num_bytes: int) -> Bytes:
        """Return the buffer for a packed piece."""
        return self._packed[:num_bytes]

    def unpacked_of(self, num_bytes: int) -> Bytes:
        """Return the buffer for an unpacked piece."""
        return self._unpacked[:num_bytes]


BUFFERS = _Buffers()
