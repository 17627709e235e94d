"""The C library's heap, told to give large freed buffers back to the system at once.

glibc raises the size from which it does so as a program frees large blocks (up to 32 MB) and keeps the rest for itself.
A streamed step frees many blocks of that size; what is kept adds up to hundreds of megabytes over a deep model.
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
    """Give the system what the heap keeps of freed blocks (of the graphs that a session was made from, tens of MB)."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        logger.debug("this C library has no malloc_trim")
