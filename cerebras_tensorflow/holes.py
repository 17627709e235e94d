"""Holes in files: zeros that take no disk space and no time to write.

The slots of an optimizer are zeros in the first checkpoint: two thirds of it with Adam.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Any

import numpy as np

FEWEST_BYTES = 1 << 20
"""Shorter runs of zeros are written: each hole costs a system call and an entry in the file's list of extents."""

_PUNCH_HOLE = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE with FALLOC_FL_KEEP_SIZE, linux/falloc.h
_WORD = np.dtype(np.uint64)


def is_hole(piece: np.ndarray[Any, np.dtype[np.uint8]]) -> bool:
    """Whether a piece of new content is zeros, and long enough to leave out.

    >>> is_hole(np.zeros(FEWEST_BYTES, np.uint8)), is_hole(np.zeros(100, np.uint8))
    (True, False)
    """
    if piece.size < FEWEST_BYTES or piece[0] or piece[piece.size // 2] or piece[-1]:  # most pieces end here
        return False
    whole = piece.size // _WORD.itemsize * _WORD.itemsize
    return not piece[:whole].view(_WORD).any() and not piece[whole:].any()


def leave_hole(fd: int, offset: int, num_bytes: int) -> None:
    """Leave out zeros of a new file, in a part that was reserved at most. The file becomes long enough."""
    punch_hole(fd, offset, num_bytes)
    if os.fstat(fd).st_size < offset + num_bytes:
        os.ftruncate(fd, offset + num_bytes)


def punch_hole(fd: int, offset: int, num_bytes: int) -> None:
    """Free the disk space of a part of a file. The part then reads as zeros. Some file systems cannot do this."""
    fallocate(fd, _PUNCH_HOLE, offset, num_bytes)


def fallocate(fd: int, mode: int, offset: int, num_bytes: int) -> int:
    """Reserve or free disk space with the system call; repeat it if a signal interrupts it. Return 0 or the errno."""
    # Not os.posix_fallocate: if the file system cannot reserve space, it writes the whole part.
    libc = ctypes.CDLL(None, use_errno=True)
    while libc.fallocate(fd, mode, ctypes.c_int64(offset), ctypes.c_int64(num_bytes)):
        if ctypes.get_errno() != errno.EINTR:
            return ctypes.get_errno()
    return 0
