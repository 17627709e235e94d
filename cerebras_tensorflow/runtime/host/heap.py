"""Makes the C library return large freed buffers to the system at once.

By default, glibc returns only blocks above a threshold. It raises the threshold, up to 32 MB, each time a program frees
a large block. A streamed step frees many blocks below it. In a deep model they add up to hundreds of megabytes.
"""

from __future__ import annotations

import ctypes
import logging

logger = logging.getLogger(__name__)

_M_MMAP_THRESHOLD = -3  # malloc.h
_RETURN_FROM_BYTES = 1_000_000


def return_large_buffers() -> bool:
    """Return blocks of a megabyte and more to the system when they are freed. Return whether that worked.

    The setting holds for the whole process. A C library other than glibc is left unchanged.
    """
    try:
        worked = bool(ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _RETURN_FROM_BYTES))
    except (AttributeError, OSError):
        worked = False
    if not worked:
        logger.debug("this C library has no mallopt: freed buffers may stay with the process")
    return worked


def trim_heap() -> None:
    """Return freed blocks in the heap to the system.

    After a session, or its executor for a new kind of run, is made from a large graph, these are tens of MB.
    """
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        logger.debug("this C library has no malloc_trim")
