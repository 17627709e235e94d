"""Reads and writes weights in files, in blocks of 64 kB. Every read compares the checksum of each block.

A block is in the store's own file. Only an adopted block is in a checkpoint until its first write. Checksums stay in
memory (4 bytes a block): they protect a run against its disk, and no other run reads its store. A read of a row or
slice reads and checks the whole blocks that contain it. A write that ends inside a block reads that block first.

Reads and writes are whole pages, at page boundaries in the file and in memory, because O_DIRECT requires that.

A pack is 16 blocks. If a write covers a whole pack that has many zeros (a sparse weight and its slots), the pack is
stored without them (packing.py), at the beginning of its place. Only these bytes are written and read. The rest of its
place stays reserved, because the next content may be dense.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import google_crc32c
import numpy as np
import numpy.typing as npt

from cerebras_tensorflow.errors import CorruptCheckpointError
from cerebras_tensorflow.holes import punch_hole
from cerebras_tensorflow.runtime.host.disk_space import reserve
from cerebras_tensorflow.runtime.weight_store.buffers import PAGE_BYTES, Bytes, aligned_buffer, up_to
from cerebras_tensorflow.runtime.weight_store.packing import BUFFERS, PIECE_BYTES, WIDTHS, pack, unpack
from cerebras_tensorflow.runtime.weight_store.traffic import Traffic

BLOCK_BYTES = 64 << 10  # smaller ones cost Python more per byte, larger ones cost gathers of single rows more
_PACK_BLOCKS = PIECE_BYTES // BLOCK_BYTES
_ADOPTED, _NOWHERE = 2, 3  # homes of a block; 0 and 1 are the slots


class DamagedBlock(Exception):
    """A block whose content is not what was written: (number of the block, file, first byte in the file)."""

    def __init__(self, block: int, path: str, offset: int) -> None:
        super().__init__(f"bytes {offset} to {offset + BLOCK_BYTES} of {path}")
        self.block, self.path, self.offset = block, path, offset


class MissingBlock(Exception):
    """The bytes to read were never written."""


@dataclass(frozen=True)
class Extent:
    """Where a whole weight is in a file: file descriptor, path for messages, first byte."""

    file: int
    path: str
    offset: int


@dataclass
class Placement:
    """Where each block of a weight is, and its checksum.

    Attributes:
        homes: The slot of each block; _ADOPTED if it is in a checkpoint; _NOWHERE before its first write.
        checksums: CRC-32C of each block; of a packed pack, at its first block.
        packed: Bytes of each pack in packed form; 0 if it is not packed.
        parts: Partly written block -> the intervals that were written [bytes of the weight].
    """

    homes: npt.NDArray[np.uint8]
    checksums: npt.NDArray[np.uint32]
    packed: npt.NDArray[np.uint32]
    parts: dict[int, list[tuple[int, int]]]

    @classmethod
    def empty(cls, num_blocks: int) -> Placement:
        """Return the placement of a weight that was never written."""
        packed = np.zeros(-(-num_blocks // _PACK_BLOCKS), np.uint32)
        return cls(np.full(num_blocks, _NOWHERE, np.uint8), np.zeros(num_blocks, np.uint32), packed, {})

    def copy(self) -> Placement:
        """Return a copy that later writes do not change."""
        return Placement(self.homes.copy(), self.checksums.copy(), self.packed.copy(), dict(self.parts))


class Blocks:
    """The blocks of one weight. Writes must come one at a time; reads may come at any time.

    The store's file has two slots for a weight. `hold` protects the current content of blocks until `release`: new
    content of a block goes to its other slot.

    Args:
        num_bytes: Size of the weight [B].
        slots: The two slots in the store's file.
        traffic: Counts bytes read from and written to files, and says which packs pay.
        width: Bytes of an element.
    """

    def __init__(self, num_bytes: int, slots: tuple[Extent, Extent], traffic: Traffic, width: int = 1) -> None:
        self.num_bytes = num_bytes
        self._traffic = traffic
        self._width = width if width in WIDTHS else 1
        self.padded_bytes = up_to(num_bytes, PAGE_BYTES)
        self.slots = slots
        self.version = 0  # changes with each write, so that a reader notices a write during its read
        self._adopted = slots[0]
        self._now = Placement.empty(-(-num_bytes // BLOCK_BYTES))
        self._held: Placement | None = None
        self._main = 0  # the slot for blocks that are in neither slot
        self._is_doubled = False  # whether both slots have disk space
        self._lock = threading.Lock()  # guards the placement and the choice of free slots

    def span(self, start: int, stop: int) -> tuple[int, int]:
        """Return the first block with bytes in [start, stop), and the block after the last one."""
        return start // BLOCK_BYTES, -(-stop // BLOCK_BYTES)

    def read_bytes(self, start: int, stop: int) -> int:
        """Return how many bytes `read` writes to its target."""
        first, last = self.span(start, stop)
        return min(last * BLOCK_BYTES, self.padded_bytes) - first * BLOCK_BYTES

    def read(self, start: int, stop: int, target: Bytes, placement: Placement | None = None) -> None:
        """Read the blocks with bytes in [start, stop) into a page-aligned array.

        Args:
            start: First byte to read.
            stop: The byte after the last one.
            target: Receives the blocks from `start // BLOCK_BYTES` on. At least as long as `read_bytes` returns.
            placement: From `hold`. None: the current one.

        Raises:
            DamagedBlock: If a block is not what was written, or a write changes it during the read.
            MissingBlock: If bytes in [start, stop) were never written.
            OSError, EOFError: If the file cannot be read, or ends early.
        """
        placement = placement or self._now
        first, last = self.span(start, stop)
        self._check_there(placement, first, last, start, stop)
        base = first * BLOCK_BYTES
        for begin, end in _runs(placement.homes[first:last], first):
            home = int(placement.homes[begin])
            extent = self._adopted if home == _ADOPTED else self.slots[home]
            limit = self.num_bytes if home == _ADOPTED else self.padded_bytes
            for at, stop_at in _pieces(begin * BLOCK_BYTES, min(end * BLOCK_BYTES, limit)):
                if home != _ADOPTED and placement.packed[at // PIECE_BYTES]:
                    self._read_packed(placement, extent, at, target[at - base : stop_at - base])
                    continue
                with self._traffic.reading(stop_at - at):
                    _fill(extent, at, target[at - base : stop_at - base])
                if stop_at == self.num_bytes:
                    target[stop_at - base : self.padded_bytes - base] = 0
                    stop_at = self.padded_bytes
                _verify(placement, at // BLOCK_BYTES, target[at - base : stop_at - base], extent)

    def write(self, start: int, data: Bytes, scratch: Bytes) -> None:
        """Write bytes of the weight from `start` on.

        Args:
            start: First byte.
            data: The bytes. They need not be aligned.
            scratch: A page-aligned buffer of PIECE_BYTES for this thread alone.

        Raises:
            DamagedBlock: If the write changes a part of a block, and the block is not what was written before.
            OSError: If the file cannot be written.
        """
        stop = start + data.size
        first, last = self.span(start, stop)
        for low, high in _pieces(first * BLOCK_BYTES, min(last * BLOCK_BYTES, self.padded_bytes)):
            number = low // PIECE_BYTES
            place, end = number * PIECE_BYTES, min((number + 1) * PIECE_BYTES, self.padded_bytes)
            is_whole = start <= place and stop >= min(end, self.num_bytes)
            if self._now.packed[number] and not is_whole:  # unpack it, change a part, and write it as a whole
                piece = scratch[: end - place]
                self.read(place, min(end, self.num_bytes), piece)
                inner_start, inner_stop = max(start, place), min(stop, end)
                low, high, is_whole = place, end, True
            else:
                piece = scratch[: high - low]
                inner_start, inner_stop = max(start, low), min(stop, high)
                for block in {low // BLOCK_BYTES, (high - 1) // BLOCK_BYTES}:
                    self._keep_rest(block, piece[block * BLOCK_BYTES - low :], inner_start, inner_stop)
            piece[inner_start - low : inner_stop - low] = data[inner_start - start : inner_stop - start]
            if not (is_whole and self._write_packed(number, piece)):
                self._write_plain(low, high, inner_start, inner_stop, piece)
        with self._lock:
            self._settle()

    def _write_plain(self, low: int, high: int, start: int, stop: int, piece: Bytes) -> None:
        """Write blocks as they are.

        Args:
            low: First byte of the first block.
            high: The byte after the last block.
            start: First byte of new content.
            stop: The byte after the last one.
            piece: The blocks' content.
        """
        begin, end = low // BLOCK_BYTES, -(-high // BLOCK_BYTES)
        sums = checksums(piece)
        with self._lock:
            self.version += 1
            homes = self._targets(begin, end)
            for run_start, run_stop in _runs(homes, begin):
                part = piece[run_start * BLOCK_BYTES - low : run_stop * BLOCK_BYTES - low]
                with self._traffic.writing(part.size):
                    _drain(self.slots[int(homes[run_start - begin])], run_start * BLOCK_BYTES, part)
            self._now.checksums[begin:end] = sums
            self._now.packed[low // PIECE_BYTES] = 0
            self._note_parts(begin, end, start, stop)
            self._now.homes[begin:end] = homes
            self.version += 1

    def _write_packed(self, number: int, piece: Bytes) -> bool:
        """Write a whole pack without its zeros. Return False if that does not pay.

        Args:
            number: Of the pack.
            piece: Its content, with padding up to a page.
        """
        begin_s = time.thread_time()
        packed = pack(piece, self._width, self._traffic.most_packed_share)
        if packed is None:
            return False
        self._traffic.count_packing(piece.size, begin_s)
        stored = BUFFERS.packed_of(up_to(packed.size, PAGE_BYTES))
        stored[: packed.size], stored[packed.size :] = packed, 0
        checksum = google_crc32c.extend(0, stored)
        begin, end = number * _PACK_BLOCKS, min((number + 1) * _PACK_BLOCKS, self._now.homes.size)
        with self._lock:
            homes = np.unique(self._targets(begin, end))
            if homes.size > 1:  # a snapshot holds blocks in both slots
                return False
            self.version += 1
            with self._traffic.writing(stored.size):
                _drain(self.slots[int(homes[0])], begin * BLOCK_BYTES, stored)
            self._now.checksums[begin] = checksum
            self._now.packed[number] = packed.size
            for block in range(begin, end) if self._now.parts else ():
                self._now.parts.pop(block, None)
            self._now.homes[begin:end] = homes[0]
            self.version += 1
        return True

    def _read_packed(self, placement: Placement, extent: Extent, start: int, target: Bytes) -> None:
        """Read a part of a packed pack.

        Args:
            placement: Where the weight is.
            extent: The slot that the pack is in.
            start: First byte to read.
            target: Receives the bytes.
        """
        number = start // PIECE_BYTES
        place = number * PIECE_BYTES
        size = min(PIECE_BYTES, self.padded_bytes - place)
        stored = BUFFERS.packed_of(min(up_to(int(placement.packed[number]), PAGE_BYTES), PIECE_BYTES))
        with self._traffic.reading(stored.size):
            _fill(extent, place, stored)
        if google_crc32c.extend(0, stored) != placement.checksums[number * _PACK_BLOCKS]:
            raise DamagedBlock(number * _PACK_BLOCKS, extent.path, extent.offset + place)
        piece = target if target.size == size else BUFFERS.unpacked_of(size)
        begin_s = time.thread_time()
        unpack(stored, piece, self._width)
        self._traffic.count_packing(size, begin_s)
        if piece is not target:
            target[:] = piece[start - place : start - place + target.size]

    def adopt(self, extent: Extent, checksum: int | None, scratch: Bytes) -> None:
        """Use bytes of a checkpoint as the weight's value. Reads them once, to compute the checksums of blocks.

        Raises:
            CorruptCheckpointError: If the bytes are cut short or fail their checksum.
        """
        sums: list[int] = []
        whole = 0
        for at in range(0, self.num_bytes, PIECE_BYTES):
            piece = scratch[: min(PIECE_BYTES, self.num_bytes - at)]
            try:
                _fill(extent, at, piece)
            except EOFError as error:
                raise CorruptCheckpointError(f"{extent.path} is cut short: {error}. Use another checkpoint.") from error
            whole = google_crc32c.extend(whole, piece)
            if at + piece.size == self.num_bytes:
                padded = up_to(piece.size, PAGE_BYTES)
                scratch[piece.size : padded] = 0
                piece = scratch[:padded]
            sums += checksums(piece)
        if checksum is not None and whole != checksum:
            raise CorruptCheckpointError(
                f"{extent.path}: bytes {extent.offset} to {extent.offset + self.num_bytes} are damaged: their checksum "
                f"is {whole:#010x}, the index says {checksum:#010x}. Use another checkpoint."
            )
        with self._lock:
            count = len(sums)
            packed = np.zeros(-(-count // _PACK_BLOCKS), np.uint32)
            self._now = Placement(np.full(count, _ADOPTED, np.uint8), np.array(sums, np.uint32), packed, {})
            self._adopted = extent

    @property
    def needs_reserve(self) -> bool:
        """Whether `hold` has to reserve disk space for the weight's other slot."""
        return not self._is_doubled

    def hold(self) -> Placement:
        """Protect the weight's current content until `release`. Return its placement, for `read`.

        Raises:
            OSError: If the disk has no room for the other slot.
        """
        with self._lock:
            if not self._is_doubled:
                reserve(self.slots[0].file, self.slots[1 - self._main].offset, self.padded_bytes)
                self._is_doubled = True
            self._held = self._now.copy()
            return self._held

    def release(self) -> None:
        """Allow writes to overwrite the held blocks again."""
        with self._lock:
            self._held = None
            self._settle()

    def _targets(self, first: int, last: int) -> npt.NDArray[np.uint8]:
        """Return the slot that new content of each block goes to."""
        now = self._now.homes[first:last]
        homes = np.where(now <= 1, now, self._main).astype(np.uint8)
        if self._held is not None:
            homes[self._held.homes[first:last] == homes] ^= 1
        return homes

    def _settle(self) -> None:
        """Free the disk space of a slot that no block uses any more."""
        if not self._is_doubled or self._held is not None:
            return
        for slot in (self._main, 1 - self._main):
            if not (self._now.homes == 1 - slot).any():
                self._main = slot
                self._is_doubled = False
                punch_hole(self.slots[0].file, self.slots[1 - slot].offset, self.padded_bytes)
                return

    def _check_there(self, placement: Placement, first: int, last: int, start: int, stop: int) -> None:
        if placement.homes[first:last].max(initial=0) != _NOWHERE and not placement.parts:
            return
        for block in range(first, last):
            there = placement.parts.get(block)
            if there is None and placement.homes[block] != _NOWHERE:
                continue
            low = max(start, block * BLOCK_BYTES)
            high = min(stop, (block + 1) * BLOCK_BYTES, self.num_bytes)
            if not any(a <= low and high <= b for a, b in there or ()):
                raise MissingBlock

    def _keep_rest(self, block: int, place: Bytes, start: int, stop: int) -> None:
        """Copy a block's bytes outside [start, stop) into the new block, at `place`."""
        low, high = block * BLOCK_BYTES, min((block + 1) * BLOCK_BYTES, self.padded_bytes)
        if start <= low and stop >= high:
            return
        place = place[: high - low]
        if start <= low and stop >= self.num_bytes:  # only the padding is left
            place[stop - low :] = 0
        elif self._now.homes[block] == _NOWHERE:
            place[:] = 0
        else:
            there = self._now.parts.get(block, [(low, min(high, self.num_bytes))])
            self.read(*there[0], place)

    def _note_parts(self, first: int, last: int, start: int, stop: int) -> None:
        """Note which bytes of partly written blocks were written. Call it before setting the new homes."""
        for block in range(first, last) if self._now.parts else {first, last - 1}:
            low, high = block * BLOCK_BYTES, min((block + 1) * BLOCK_BYTES, self.num_bytes)
            known = self._now.parts.pop(block, None)
            if known is None and self._now.homes[block] != _NOWHERE:
                continue
            there = _merged([*(known or ()), (max(start, low), min(stop, high))])
            if there != [(low, high)]:
                self._now.parts[block] = there


class Scratch(threading.local):
    """A page-aligned buffer of PIECE_BYTES for each thread."""

    def __init__(self) -> None:
        self.piece = aligned_buffer(PIECE_BYTES)


def _pieces(start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of the parts of [start, stop) in each pack."""
    while start < stop:
        end = min((start // PIECE_BYTES + 1) * PIECE_BYTES, stop)
        yield start, end
        start = end


def _merged(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
        else:
            merged.append((start, stop))
    return merged


def checksums(piece: Bytes) -> list[int]:
    """Return the CRC-32C of each block of some bytes."""
    extend = google_crc32c.extend
    return [extend(0, piece[at : at + BLOCK_BYTES]) for at in range(0, piece.size, BLOCK_BYTES)]


def _verify(placement: Placement, first: int, piece: Bytes, extent: Extent) -> None:
    sums = checksums(piece)
    expected = placement.checksums[first : first + len(sums)].tolist()
    if sums != expected:
        bad = first + next(n for n, pair in enumerate(zip(sums, expected, strict=True)) if pair[0] != pair[1])
        raise DamagedBlock(bad, extent.path, extent.offset + bad * BLOCK_BYTES)


def _runs(homes: npt.NDArray[np.uint8], first: int) -> Iterator[tuple[int, int]]:
    """Yield (first block, block after the last) of each run of blocks with the same home."""
    cuts = [0, *(np.flatnonzero(np.diff(homes)) + 1).tolist(), homes.size]
    for begin, end in itertools.pairwise(cuts):
        yield first + begin, first + end


def _fill(extent: Extent, start: int, target: Bytes) -> None:
    view = target.data
    offset = extent.offset + start
    while view.nbytes:
        count = os.preadv(extent.file, [view], offset)
        if not count:
            raise EOFError(f"{extent.path} ends at byte {offset}, {view.nbytes} bytes early")
        view = view[count:]
        offset += count


def _drain(extent: Extent, start: int, source: Bytes) -> None:
    view = source.data
    offset = extent.offset + start
    while view.nbytes:
        count = os.pwritev(extent.file, [view], offset)
        if not count:
            raise OSError(errno.EIO, os.strerror(errno.EIO))  # without this, the loop would never end
        view = view[count:]
        offset += count
