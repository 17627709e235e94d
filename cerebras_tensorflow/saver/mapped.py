"""Tensors as copy-on-write maps of a checkpoint's file: the bytes that the page cache holds, checked but not copied."""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np

from cerebras_tensorflow.errors import CorruptCheckpointError
from cerebras_tensorflow.saver import extents
from cerebras_tensorflow.saver.interface import TensorReader

# Smaller tensors are read: a map costs more than their copy.
_MIN_BYTES = 256 << 10


def read(reader: TensorReader, name: str) -> np.ndarray[Any, Any]:
    """Return the value of a tensor, checked against its checksum; a large one that lies as it is in memory as a map.

    The array may be written to; the file does not change by it. It outlives the reader, and the removal or replacement
    of the file. While it lives the file must not be updated in place or cut short: the array would change with it, or
    the process end by SIGBUS.

    Raises:
        KeyError, CorruptCheckpointError: As `TensorReader.read`.
    """
    entry = reader.entry(name)
    where = reader.extent(name) if entry.num_bytes >= _MIN_BYTES else None
    if where is None or where.offset % entry.dtype.itemsize:
        return reader.read(name)
    fd = os.open(where.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            crc = extents.checksum(fd, where.offset, entry.num_bytes)
        except EOFError as exc:
            raise CorruptCheckpointError(f"{where.path}: tensor {name!r} is cut short: {exc}") from exc
        if crc != where.crc:
            # The reader says it with all that it knows, or the damage was of a moment.
            return reader.read(name)
        skipped = where.offset % mmap.ALLOCATIONGRANULARITY
        pages = mmap.mmap(
            fd,
            skipped + entry.num_bytes,
            flags=mmap.MAP_PRIVATE,
            prot=mmap.PROT_READ | mmap.PROT_WRITE,
            offset=where.offset - skipped,
        )
    finally:
        os.close(fd)
    content = np.frombuffer(pages, np.uint8, entry.num_bytes, skipped)
    return content.view(entry.dtype).reshape(entry.shape)
