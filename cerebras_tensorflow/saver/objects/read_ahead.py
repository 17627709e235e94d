"""Reads the stream of a checkpoint's data objects in pieces, with several requests at a time.

It keeps the latest pieces, so many small tensors take one request. If tensors are read in the order of the stream, it
requests the next pieces ahead of time.
"""

from __future__ import annotations

import bisect
import collections
import contextlib
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from cerebras_tensorflow.errors import CorruptCheckpointError
from cerebras_tensorflow.saver.files.checksum import crc32c
from cerebras_tensorflow.saver.objects import manifest as manifests
from cerebras_tensorflow.saver.objects.manifest import Manifest
from cerebras_tensorflow.saver.objects.store import Bucket

_THREADS = 8
_FEW = 5  # with the writer's objects, a conversion stays below 400 MB
DEEP = 16
"""Pieces of a run to request before the first is used, where memory is not scarce.

A server answers requests of the same time at about the same time. With as many as there are threads, these would have
nothing to do until the reader has used some pieces.
"""
_USED = 2  # pieces to keep in addition, for small tensors
_READS = 4


@dataclass(frozen=True)
class _Part:
    """A run of the stream within one piece of one object.

    Attributes:
        number: Number of the object.
        offset: Start of the run in its object [B].
        size: Size of the run [B].
        position: Start of the run in the stream [B].
    """

    number: int
    offset: int
    size: int
    position: int


class ReadAhead:
    """Reads the stream of a manifest's objects. Only one thread may use it at a time.

    Args:
        bucket: The bucket of the objects.
        folder: The checkpoint's key.
        manifest: Names and sizes of the objects.
    """

    def __init__(self, bucket: Bucket, folder: str, manifest: Manifest) -> None:
        self._bucket, self._folder, self._manifest = bucket, folder, manifest
        self._starts = [0, *itertools.accumulate(manifest.sizes)]
        self._pool = ThreadPoolExecutor(_THREADS, "object-reader")
        self._kept: collections.OrderedDict[tuple[int, int], Future[memoryview]] = collections.OrderedDict()
        self._lock = threading.Lock()
        # Ends of the latest runs: of large tensors, and of small ones between them, which share objects of their own.
        self._ends: collections.deque[int] = collections.deque(maxlen=2)

    def read(self, position: int, size: int, num_requested: int = _FEW) -> Iterator[memoryview]:
        """Yield a run of the stream in order. If it follows the last run, also request the pieces after it.

        Args:
            position: Start of the run [B].
            size: Its size [B].
            num_requested: Pieces that are requested or wait for their use; memory holds two more.

        Raises:
            CheckpointError: If an object cannot be read.
            CorruptCheckpointError: If a piece fails its checksum at every attempt.
        """
        end = position + size
        # A short first run may be the only one.
        is_next = position in self._ends or (not self._ends and size >= manifests.PIECE_BYTES)
        with contextlib.suppress(ValueError):
            self._ends.remove(position)
        self._ends.append(end)
        ahead = num_requested * manifests.PIECE_BYTES if is_next else 0
        window: collections.deque[tuple[_Part, Future[memoryview]]] = collections.deque()
        for part in self._parts(position, min(end + ahead, self._starts[-1])):
            if part.position >= end and not size:
                break
            window.append((part, self._piece(part, num_requested + _USED)))
            if len(window) > num_requested and window[0][0].position < end:
                yield self._content(*window.popleft(), end)
        while window and window[0][0].position < end:
            yield self._content(*window.popleft(), end)

    def read_exactly(self, position: int, size: int) -> Iterator[memoryview]:
        """Yield a run of the stream in order. Read only its bytes, so do not verify checksums."""
        parts = self._parts(position, position + size)
        window: collections.deque[Future[memoryview]] = collections.deque()
        while True:
            for part in itertools.islice(parts, _THREADS - len(window)):
                key = self._key(part.number)
                window.append(self._pool.submit(self._bucket.get_range, key, part.offset, part.size))
            if not window:
                return
            yield window.popleft().result()

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(cancel_futures=True)
        self._kept.clear()

    def _parts(self, position: int, end: int) -> Iterator[_Part]:
        while position < end:
            number = bisect.bisect_right(self._starts, position) - 1
            offset = position - self._starts[number]
            to_next_piece = manifests.PIECE_BYTES - offset % manifests.PIECE_BYTES
            size = min(to_next_piece, end - position, self._manifest.sizes[number] - offset)
            yield _Part(number, offset, size, position)
            position += size

    def _piece(self, part: _Part, num_kept: int) -> Future[memoryview]:
        """Return the future of the whole piece around a part; reuse an earlier request that has not failed."""
        index = part.offset // manifests.PIECE_BYTES
        with self._lock:
            future = self._kept.pop((part.number, index), None)
            if future is None or (future.done() and (future.cancelled() or future.exception() is not None)):
                future = self._pool.submit(self._read_piece, part.number, index)
            self._kept[part.number, index] = future
            while len(self._kept) > num_kept:
                self._kept.popitem(last=False)
            return future

    def _read_piece(self, number: int, index: int) -> memoryview:
        """Return a piece. If its checksum is wrong, read it again: the network may have damaged it."""
        key, offset = self._key(number), index * manifests.PIECE_BYTES
        size = min(manifests.PIECE_BYTES, self._manifest.sizes[number] - offset)
        for _ in range(_READS):
            content = self._bucket.get_range(key, offset, size)
            if crc32c(content) == self._manifest.checks[number][index]:
                return content
        raise CorruptCheckpointError(
            f"{self._bucket.url(key)}: damaged: bytes {offset} to {offset + size} fail their checksum. Use another "
            "checkpoint."
        )

    def _content(self, part: _Part, piece: Future[memoryview], end: int) -> memoryview:
        skipped = part.offset % manifests.PIECE_BYTES
        return piece.result()[skipped : skipped + min(part.size, end - part.position)]

    def _key(self, number: int) -> str:
        return f"{self._folder}/{self._manifest.objects[number]}"
