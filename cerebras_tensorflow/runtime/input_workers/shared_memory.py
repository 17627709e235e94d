"""Batches in memory that an input worker and the chief share. The worker copies a batch once; the chief does not copy.

The worker writes each batch to a new file in memory, which has no name. The chief opens it through the worker's
descriptor in /proc, which the kernel allows to the same user only. The kernel frees the memory when both have closed
it, even if one of them is killed.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Sequence
from typing import Any

_NAME = "batch"


def write(pieces: Sequence[bytes | memoryview]) -> int:
    """Return a new file in memory with these bytes.

    Raises:
        OSError: If there is not enough memory, too many files are open, or the system does not allow such files.
    """
    file = os.memfd_create(_NAME, os.MFD_CLOEXEC)
    try:
        for piece in pieces:
            rest = memoryview(piece)
            while rest:
                rest = rest[os.write(file, rest) :]
    except BaseException:
        os.close(file)
        raise
    return file


def place_of(file: int, num_bytes: int) -> dict[str, Any]:
    """Return the arguments with which another process calls `mapped`."""
    return {"process": os.getpid(), "file": file, "inode": os.fstat(file).st_ino, "num_bytes": num_bytes}


def mapped(process: int, file: int, inode: int, num_bytes: int) -> memoryview:
    """Return the bytes of a file of another process. They stay valid after that process has closed it.

    Writing to them changes this process's copy only: TensorFlow may compute in place.

    Raises:
        OSError: If it cannot be opened, or is another file: in another container, the number names another process.
    """
    path = f"/proc/{process}/fd/{file}"
    link = os.readlink(path)
    if not link.startswith(f"/memfd:{_NAME} "):  # opening a device or a pipe could block or change it
        raise OSError(errno.ESTALE, f"{link}, not a batch", path)
    own = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        status = os.fstat(own)
        if (status.st_ino, status.st_size) != (inode, num_bytes):
            raise OSError(errno.ESTALE, f"another batch, of {status.st_size} bytes; expected {num_bytes}", path)
        return memoryview(mmap.mmap(own, num_bytes, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE))
    finally:
        os.close(own)
