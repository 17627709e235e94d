"""Batches in memory that an input worker and the chief share. The worker copies a batch once; the chief does not copy.

The worker writes a batch to a file in memory, which has no name. The chief opens it through the worker's descriptor in
/proc, which the kernel allows to the same user only. New memory pages cost far more time than the copy, so both keep
their mappings: when the last user of a batch in the chief is gone, the chief tells the worker, and the worker writes
a later batch to the same file. The kernel frees the memory when both have closed it, even if one of them is killed.
"""

from __future__ import annotations

import errno
import mmap
import os
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

from cerebras_tensorflow.runtime.host import memory_files

MOST_FILES = 16
"""More batches than these in use in the chief: the next ones go into messages."""

_NAME = "batch"

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True)
class _File:
    inode: int
    content: Bytes


class WorkerMemory:
    """The worker's files. Final; use it in a `with` block, which closes them."""

    def __init__(self) -> None:
        self._files: dict[int, _File] = {}
        self._free: list[int] = []

    def __enter__(self) -> WorkerMemory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files:
            os.close(file)
        self._files.clear()
        self._free.clear()

    def write(self, pieces: Sequence[Bytes]) -> dict[str, Any]:
        """Return the place of these bytes: the arguments with which the chief calls `ChiefMemory.mapped`.

        Raises:
            OSError: If there is not enough memory, too many files are in use, or the system does not allow such files.
        """
        num_bytes = sum(piece.nbytes for piece in pieces)
        file = self._free.pop() if self._free else self._new_file()
        try:
            content = self._large_enough(file, num_bytes)
        except BaseException:
            self._free.append(file)
            raise
        start = 0
        for piece in pieces:
            content[start : start + piece.nbytes] = piece
            start += piece.nbytes
        return {"process": os.getpid(), "file": file, "inode": self._files[file].inode, "num_bytes": num_bytes}

    def free(self, files: Sequence[int]) -> None:
        """Use these files again: the chief has no more use of their bytes.

        Raises:
            ValueError: If one of them is not in use.
        """
        for file in files:
            if file not in self._files or file in self._free:
                raise ValueError(f"the chief frees file {file}, which is not in use")
            self._free.append(file)

    def _new_file(self) -> int:
        if len(self._files) >= MOST_FILES:
            raise OSError(errno.EMFILE, f"the chief uses {MOST_FILES} batches at once")
        file = memory_files.create(_NAME)
        self._files[file] = _File(os.fstat(file).st_ino, np.empty(0, np.uint8))
        return file

    def _large_enough(self, file: int, num_bytes: int) -> Bytes:
        known = self._files[file]
        if known.content.nbytes < num_bytes:
            os.posix_fallocate(file, 0, num_bytes)  # an error here, not a signal at the first write
            known = self._files[file] = _File(known.inode, _array(file, num_bytes))
        return known.content


class ChiefMemory:
    """The chief's mappings of the files of one worker process. Final."""

    def __init__(self) -> None:
        self._files: dict[int, _File] = {}
        self._freed: deque[int] = deque()

    def mapped(self, process: int, file: int, inode: int, num_bytes: int) -> memoryview:
        """Return the bytes of a batch. They do not change while this view, or an array on its memory, exists.

        TensorFlow may write to them: it may compute in place.

        Raises:
            OSError: If the file cannot be opened or is another: in another container, a number names another process.
        """
        known = self._files.get(file)
        if known is None or known.inode != inode or known.content.nbytes < num_bytes:
            known = self._files[file] = _opened(process, file, inode, num_bytes)
        view = known.content[:num_bytes]
        weakref.finalize(view, self._freed.append, file).atexit = False
        return view.data

    def freed(self) -> list[int]:
        """Return the files whose bytes nobody uses any more, each once."""
        return [self._freed.popleft() for _ in range(len(self._freed))]


def _opened(process: int, file: int, inode: int, num_bytes: int) -> _File:
    """Map a file of another process.

    Raises:
        OSError: As `ChiefMemory.mapped`.
    """
    own = memory_files.open_other(process, file, _NAME, os.O_RDWR)
    try:
        status = os.fstat(own)
        if status.st_ino != inode or status.st_size < num_bytes:
            raise OSError(errno.ESTALE, f"another batch, of {status.st_size} bytes; expected {num_bytes}")
        return _File(inode, _array(own, status.st_size))
    finally:
        os.close(own)


def _array(file: int, num_bytes: int) -> Bytes:
    return np.frombuffer(mmap.mmap(file, num_bytes, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE), np.uint8)
