"""The C library's heap, told to give large freed buffers back to the system at once.

By itself glibc raises the size from which it does so, up to 32 MB, each time a program frees a large block, and keeps
smaller blocks. A streamed step frees many such blocks; over a deep model they add up to hundreds of megabytes.
"""

from __future__ import annotations

import ctypes
import logging

logger = logging.getLogger(__name__)

_M_MMAP_THRESHOLD = -3  # malloc.h
_RETURN_FROM_BYTES = 1_000_000


def return_large_buffers() -> bool:
    """Make blocks of a megabyte and more go back to the system when they are freed; return whether that worked.

    It holds for the whole process from then on. Where the C library is not glibc nothing happens.
    """
    try:
        worked = bool(ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _RETURN_FROM_BYTES))
    except (AttributeError, OSError):
        worked = False
    if not worked:
        logger.debug("this C library has no mallopt: freed buffers may stay with the process")
    return worked


def trim_heap() -> None:
    """Give freed blocks that the heap keeps back to the system: tens of MB after a session was made from its graphs."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        logger.debug("this C library has no malloc_trim")
