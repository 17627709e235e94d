"""The weights of a store as they were at one moment, readable while training goes on to change them.

Nothing is copied when a snapshot is taken. In memory, a weight that training replaces gets a new array and the snapshot
keeps the old one. In a file, each weight has two slots: as long as the snapshot needs the one, new rows go to the
other (`Slots`). So a snapshot costs at most the weights' size once more, of memory or of disk, and no time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

PIECE_BYTES = 4 << 20


class StoreSnapshot(ABC):
    """Read and release each weight, in any order, from any one thread; close at the end."""

    @abstractmethod
    def pieces(self, index: int) -> Iterator[np.ndarray]:
        """Yield a weight's bytes in order, as flat uint8 arrays of a few megabytes; each is valid until the next.

        Raises:
            StoreError: If the store cannot be read.
        """

    @abstractmethod
    def release(self, index: int) -> None:
        """Say that a weight will not be read any more, so that training may write over it."""

    @abstractmethod
    def close(self) -> None:
        """Release all weights."""


@dataclass(frozen=True)
class Part:
    """A run of rows that lie together in the file.

    Attributes:
        offset: Of the first byte [B].
        start, stop: Rows.
    """

    offset: int
    start: int
    stop: int


@dataclass
class _Weight:
    """Where a weight lies: rows in `moved` in the slot that is not home, all others at home."""

    offsets: tuple[int, int]
    rows: int
    row_bytes: int
    home: int = 0
    held: int | None = None  # the slot that the snapshot needs
    moved: list[tuple[int, int]] = field(default_factory=list)


class Slots:
    """Which of its two slots each row of each weight is in. Does no input or output, and no locking.

    Args:
        offsets: First slot of each weight in the file [B].
        rows: Rows of each weight.
        row_bytes: Size of a row of each weight [B].
        second: Distance of the second slots from the first [B].
    """

    def __init__(self, offsets: Sequence[int], rows: Sequence[int], row_bytes: Sequence[int], second: int) -> None:
        self._weights = [
            _Weight((offset, offset + second), count, size)
            for offset, count, size in zip(offsets, rows, row_bytes, strict=True)
        ]

    def parts(self, index: int, start: int, stop: int) -> list[Part]:
        """Return where rows start to stop are, in order."""
        weight = self._weights[index]
        if not weight.moved:
            return [_part(weight, weight.home, start, stop)]
        found = []
        for first, last in weight.moved:
            if start < min(first, stop):
                found.append(_part(weight, weight.home, start, min(first, stop)))
            start = max(start, min(first, stop))
            if start < min(last, stop):
                found.append(_part(weight, 1 - weight.home, start, min(last, stop)))
                start = min(last, stop)
        if start < stop:
            found.append(_part(weight, weight.home, start, stop))
        return found

    def target(self, index: int, start: int, stop: int) -> tuple[int, Part | None]:
        """Say where new values of rows start to stop are to be written; `parts` names that place from now on.

        Returns:
            The offset, and the slot that nobody needs any more now, if there is one.
        """
        weight = self._weights[index]
        if weight.held != weight.home and not weight.moved:
            return _part(weight, weight.home, start, stop).offset, None
        offset = _part(weight, 1 - weight.home, start, stop).offset
        weight.moved = _with(weight.moved, start, stop)
        if weight.moved != [(0, weight.rows)]:
            return offset, None
        old, weight.home, weight.moved = weight.home, 1 - weight.home, []
        return offset, None if weight.held == old else _part(weight, old, 0, weight.rows)

    def unsettled(self) -> list[tuple[int, Part, int]]:
        """Return (index, rows at home, offset in the other slot) of rows that must be moved before `hold`."""
        found = []
        for index, weight in enumerate(self._weights):
            if weight.moved:
                for part in self.parts(index, 0, weight.rows):
                    if part.offset == _part(weight, weight.home, part.start, part.stop).offset:
                        found.append((index, part, _part(weight, 1 - weight.home, part.start, part.stop).offset))
        return found

    def hold(self) -> list[tuple[Part, Part]]:
        """Keep every weight's present slot from being written; return (that slot, the other) of each."""
        slots = []
        for weight in self._weights:
            weight.held = weight.home
            slots.append((_part(weight, weight.home, 0, weight.rows), _part(weight, 1 - weight.home, 0, weight.rows)))
        return slots

    def release(self, index: int) -> Part | None:
        """End the hold on a weight; return the slot that nobody needs any more, if there is one."""
        weight = self._weights[index]
        held, weight.held = weight.held, None
        if held is None or weight.moved:
            return None
        return _part(weight, 1 - weight.home, 0, weight.rows)


def _part(weight: _Weight, slot: int, start: int, stop: int) -> Part:
    return Part(weight.offsets[slot] + start * weight.row_bytes, start, stop)


def _with(ranges: list[tuple[int, int]], start: int, stop: int) -> list[tuple[int, int]]:
    """Return sorted, disjoint ranges with one more; ranges that touch become one."""
    merged: list[tuple[int, int]] = []
    for first, last in sorted([*ranges, (start, stop)]):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged
