"""Runs of bytes in open files: read into memory that is already there, with their checksum taken on the way."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any, TypeAlias

import numpy as np

from cerebras_tensorflow.saver.checksum import crc32c

Bytes: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]

# In pieces, so that each still is in cache when its checksum is taken.
_PIECE_BYTES = 1 << 20
# Size of the pieces in which readers hand out large tensors; one that fits a core's cache.
STREAM_BYTES = 512 << 10


def fill(fd: int, offset: int, target: Bytes) -> None:
    """Fill a flat uint8 array from a file.

    Raises:
        EOFError: If the file ends before.
    """
    view = target.data
    while view.nbytes:
        count = os.preadv(fd, [view], offset)
        if not count:
            raise EOFError(f"the file ends at byte {offset}, {view.nbytes} bytes early")
        view = view[count:]
        offset += count


def fill_checked(fd: int, offset: int, target: Bytes) -> int:
    """Fill a flat uint8 array from a file and return the CRC-32C of it.

    Raises:
        EOFError: As `fill`.
    """
    crc = 0
    for done in range(0, target.size, _PIECE_BYTES):
        piece = target[done : done + _PIECE_BYTES]
        fill(fd, offset + done, piece)
        crc = crc32c(piece, crc)
    return crc


def checksum(fd: int, offset: int, num_bytes: int, scratch: Bytes) -> int:
    """Return the CRC-32C of a run of bytes, read through a scratch array of any size.

    Raises:
        EOFError: As `fill`.
    """
    crc = done = 0
    while done < num_bytes:
        piece = scratch[: min(scratch.size, num_bytes - done)]
        fill(fd, offset + done, piece)
        crc = crc32c(piece, crc)
        done += piece.size
    return crc


def stream(fd: int, offset: int, num_bytes: int) -> Generator[Bytes, None, int]:
    """Yield a run of bytes in pieces that share one scratch array; return the CRC-32C of all.

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
