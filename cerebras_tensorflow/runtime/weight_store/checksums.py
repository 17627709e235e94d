"""Checksums of a weight in memory, by pieces that follow the weight's updates.

The pieces cover the whole weight. A write of the whole weight makes pieces of equal size. An update of some rows makes
one piece of these rows. So from the second step on, an update compares one checksum before and computes one after,
while the bytes are in the processor's cache.

A checksum is the sum of the bytes as 64-bit words. It detects every flipped bit, runs at the speed of memory, and does
not block other threads. CRC-32C from Python took more than twice as long and held the interpreter's lock. Checkpoints
use CRC-32C.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TypeAlias

import numpy as np

from cerebras_tensorflow.runtime.weight_store.buffers import Bytes

PIECE_BYTES = 256 << 10  # smaller ones cost Python more per byte, larger ones cost gathers of single rows more


Pieces: TypeAlias = list[tuple[int, int, int | None]]
"""(First byte, byte after the last, checksum or None if unknown) of each piece."""


class DamagedPiece(Exception):
    """Bytes that are not what was written: `start` to `stop` of the weight."""

    def __init__(self, start: int, stop: int) -> None:
        super().__init__(f"bytes {start} to {stop}")
        self.start, self.stop = start, stop


def checksum(data: Bytes) -> int:
    """Return the sum of bytes modulo 2**64, as little-endian 64-bit words. The last word is padded with zeros."""
    whole = data.size // 8 * 8
    words = np.add.reduce(data[:whole].view(np.uint64), dtype=np.uint64)
    return (int(words) + int.from_bytes(data[whole:].tobytes(), "little")) % 2**64


class Sums:
    """Checksums of the pieces of one weight. Only one thread may use it at a time.

    Args:
        num_bytes: Size of the weight. Its checksums are unknown at first.
    """

    def __init__(self, num_bytes: int) -> None:
        self._cuts = [0, num_bytes] if num_bytes else [0]
        self._sums: list[int | None] = [None] * (len(self._cuts) - 1)

    def pieces(self) -> Pieces:
        """Return all pieces, in order."""
        return list(zip(self._cuts, self._cuts[1:], self._sums, strict=False))

    def note(self, start: int, data: Bytes, piece_bytes: int | None = None) -> None:
        """Compute the checksums of bytes that are written.

        Args:
            start: First byte.
            data: The bytes.
            piece_bytes: Size of the pieces. None: one piece.
        """
        if not data.size:
            return
        size = piece_bytes or data.size
        starts = range(0, data.size, size)
        self._replace(start, start + data.size, [checksum(data[at : at + size]) for at in starts], size)

    def forget(self, start: int, stop: int) -> None:
        """Mark bytes as changing: their checksum is unknown until the next `note`."""
        if start < stop:
            self._replace(start, stop, [None], stop - start)

    def cut(self, whole: Bytes, at: int) -> None:
        """Make a piece end at a byte, if none does.

        Raises:
            DamagedPiece: If the piece to cut is not what was written.
        """
        number = bisect_right(self._cuts, at) - 1
        if self._cuts[number] == at or at >= self._cuts[-1]:
            return
        start, stop = self._cuts[number], self._cuts[number + 1]
        if self._sums[number] is None:
            halves: list[int | None] = [None, None]
        else:
            check(whole, start, stop, self._sums[number])
            halves = [checksum(whole[start:at]), checksum(whole[at:stop])]
        self._cuts.insert(number + 1, at)
        self._sums[number : number + 1] = halves

    def between(self, start: int, stop: int) -> Pieces:
        """Return the pieces that have bytes in [start, stop)."""
        if start >= stop:
            return []
        first, last = bisect_right(self._cuts, start) - 1, bisect_left(self._cuts, stop)
        return [(self._cuts[n], self._cuts[n + 1], self._sums[n]) for n in range(first, last)]

    def _replace(self, start: int, stop: int, sums: list[int | None], size: int) -> None:
        """Replace whole pieces by new ones. Both ends must be bounds of pieces."""
        first, last = bisect_left(self._cuts, start), bisect_left(self._cuts, stop)
        if self._cuts[first] != start or self._cuts[last] != stop:
            raise ValueError(f"bytes {start} to {stop} are not whole pieces")
        self._cuts[first:last] = range(start, stop, size)
        self._sums[first:last] = sums


def check(whole: Bytes, start: int, stop: int, expected: int | None) -> None:
    """Compare a piece with its checksum.

    Raises:
        DamagedPiece: If it differs.
    """
    if expected is not None and checksum(whole[start:stop]) != expected:
        raise DamagedPiece(start, stop)
