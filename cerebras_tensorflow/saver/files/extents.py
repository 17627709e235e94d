"""Reading runs of bytes from open files into existing memory, with their checksums."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator
from typing import Any, TypeAlias

import numpy as np

from cerebras_tensorflow.saver.files.checksum import combine, crc32c

Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]

# Small enough that a piece is still in the CPU cache when its checksum is computed.
_PIECE_BYTES = 1 << 20
# Readers yield large tensors in pieces of this size, which fits a core's cache.
STREAM_BYTES = 512 << 10
# To start a thread takes about as long as to read and check 2 MiB, and ten times as long on a busy machine.
_TWO_THREADS_FROM_BYTES = 32 << 20


def fill(fd: int, offset: int, target: Bytes) -> None:
    """Fill a flat uint8 array from a file.

    Raises:
        EOFError: If the file ends too early.
    """
    view = target.data
    while view.nbytes:
        count = os.preadv(fd, [view], offset)
        if not count:
            raise EOFError(f"the file ends at byte {offset}, {view.nbytes} bytes early")
        view = view[count:]
        offset += count


def fill_checked(fd: int, offset: int, target: Bytes) -> int:
    """Fill a flat uint8 array from a file and return its CRC-32C; large arrays use two threads.

    Raises:
        EOFError: As `fill`.
    """

    def part(start: int, stop: int) -> int:
        crc = 0
        for done in range(start, stop, _PIECE_BYTES):
            piece = target[done : min(done + _PIECE_BYTES, stop)]
            fill(fd, offset + done, piece)
            crc = crc32c(piece, crc)
        return crc

    return _in_halves(part, target.size)


def checksum(fd: int, offset: int, num_bytes: int) -> int:
    """Return the CRC-32C of a run of bytes, read through a small buffer; large runs use two threads.

    Raises:
        EOFError: As `fill`.
    """

    def part(start: int, stop: int) -> int:
        scratch = np.empty(min(STREAM_BYTES, stop - start), np.uint8)
        crc = 0
        for done in range(start, stop, STREAM_BYTES):
            piece = scratch[: stop - done]
            fill(fd, offset + done, piece)
            crc = crc32c(piece, crc)
        return crc

    return _in_halves(part, num_bytes)


def _in_halves(part: Callable[[int, int], int], size: int) -> int:
    """Return the CRC of [0, size). `part` returns the CRC of a part; large sizes call it in two threads.

    This helps because reading and checksumming release Python's lock.
    """
    if size < _TWO_THREADS_FROM_BYTES:
        return part(0, size)
    middle = size // 2 // STREAM_BYTES * STREAM_BYTES
    second: list[int | BaseException] = []

    def run() -> None:
        try:
            second.append(part(middle, size))
        except BaseException as exc:  # noqa: BLE001 (the caller raises it)
            second.append(exc)

    thread = threading.Thread(target=run, name="checkpoint-reader")
    thread.start()
    try:
        first = part(0, middle)
    finally:
        thread.join()
    if isinstance(second[0], BaseException):
        raise second[0]
    return combine(first, second[0], size - middle)


def stream(fd: int, offset: int, num_bytes: int) -> Generator[Bytes, None, int]:
    """Yield a run of bytes in pieces that reuse one scratch array; return the CRC-32C of the run.

    Raises:
        EOFError: As `fill`.
    """
    scratch = np.empty(min(STREAM_BYTES, num_bytes), np.uint8)
    crc = 0
    for done in range(0, num_bytes, STREAM_BYTES):
        piece = scratch[: num_bytes - done]
        fill(fd, offset + done, piece)
        crc = crc32c(piece, crc)
        yield piece
    return crc
