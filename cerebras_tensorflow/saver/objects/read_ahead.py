"""Reads the stream of a checkpoint's data objects in pieces, with several requests at a time.

It keeps the latest pieces, so many small tensors take one request. If the caller knows what it will read next, the
reader requests these pieces ahead of time.
"""

from __future__ import annotations

import bisect
import collections
import itertools
import logging
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from cerebras_tensorflow.errors import CorruptCheckpointError
from cerebras_tensorflow.saver.files.checksum import combine, crc32c
from cerebras_tensorflow.saver.objects import manifest as manifests
from cerebras_tensorflow.saver.objects.manifest import Manifest
from cerebras_tensorflow.saver.objects.store import Bucket

logger = logging.getLogger(__name__)

_THREADS = 8
_FEW = 5  # requests ahead of use; with the writer's objects, a conversion stays below 400 MB
# The same, and pieces in a request, where memory is not scarce: at most 192 MiB. A server answers requests of the same
# time at about the same time. With as many as there are threads, these would have nothing to do until the reader has
# used some.
_DEEP, _DEEP_PIECES = 12, 2
_USED = 2  # requests to keep in addition, for small tensors
_READS = 4


@dataclass(frozen=True)
class _Part:
    """A run of the stream that is read with one request.

    Attributes:
        number: Number of the object.
        pieces: Numbers of the object's pieces that are requested.
        offset: Start of the run in its object [B].
        size: Size of the run [B].
    """

    number: int
    pieces: range
    offset: int
    size: int


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
        self._kept: collections.OrderedDict[tuple[int, range], Future[memoryview]] = collections.OrderedDict()

    def read(
        self, position: int, size: int, is_deep: bool = False, following: Iterable[tuple[int, int]] = ()
    ) -> Iterator[tuple[memoryview, int | None]]:
        """Yield a run of the stream in order: bytes, and their CRC-32C if they are whole pieces, else None.

        Args:
            position: Start of the run [B].
            size: Its size [B].
            is_deep: Whether to request more and larger parts at a time, because memory is not scarce.
            following: Position and size of the runs that will probably be read next.

        Raises:
            CheckpointError: If an object cannot be read.
            CorruptCheckpointError: If a piece fails its checksum at every attempt.
        """
        window: collections.deque[tuple[_Part, Future[memoryview]]] = collections.deque()
        num_pieces, num_requested = (_DEEP_PIECES, _DEEP) if is_deep else (1, _FEW)
        num_own = 0  # parts of this run in the window
        for part in self._parts(position, position + size, num_pieces):
            window.append((part, self._requested(part, num_requested + _USED)))
            num_own += 1
            if len(window) > num_requested:
                yield self._content(*window.popleft())
                num_own -= 1
        later = (part for start, length in following for part in self._parts(start, start + length, num_pieces))
        for part in itertools.islice(later, num_requested if num_own else 0):
            window.append((part, self._requested(part, num_requested + _USED)))
            if len(window) > num_requested:
                yield self._content(*window.popleft())
                num_own -= 1
                if not num_own:
                    return
        for _ in range(num_own):
            yield self._content(*window.popleft())

    def read_exactly(self, position: int, size: int) -> Iterator[memoryview]:
        """Yield a run of the stream in order. Read only its bytes, so do not verify checksums."""
        parts = self._parts(position, position + size, 1)
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

    def _parts(self, position: int, end: int, num_pieces: int) -> Iterator[_Part]:
        while position < end:
            number = bisect.bisect_right(self._starts, position) - 1
            offset = position - self._starts[number]
            first = offset // manifests.PIECE_BYTES // num_pieces * num_pieces
            pieces = range(first, min(first + num_pieces, len(self._manifest.checks[number])))
            part_end = min(pieces.stop * manifests.PIECE_BYTES, self._manifest.sizes[number])
            size = min(part_end - offset, end - position)
            yield _Part(number, pieces, offset, size)
            position += size

    def _requested(self, part: _Part, num_kept: int) -> Future[memoryview]:
        """Return the future of the whole pieces around a part; reuse an earlier request that has not failed."""
        key = (part.number, part.pieces)
        future = self._kept.pop(key, None)
        if future is None or (future.done() and (future.cancelled() or future.exception() is not None)):
            future = self._pool.submit(self._read_pieces, *key)
        self._kept[key] = future
        while len(self._kept) > num_kept:
            self._kept.popitem(last=False)
        return future

    def _read_pieces(self, number: int, pieces: range) -> memoryview:
        """Return some pieces. If a checksum is wrong, read them again: the network may have damaged them."""
        key, offset = self._key(number), pieces.start * manifests.PIECE_BYTES
        size = min(len(pieces) * manifests.PIECE_BYTES, self._manifest.sizes[number] - offset)
        expected = self._manifest.checks[number][pieces.start : pieces.stop]
        starts = range(0, size, manifests.PIECE_BYTES)
        for attempt in range(_READS):
            content = self._bucket.get_range(key, offset, size)
            if tuple(crc32c(content[at : at + manifests.PIECE_BYTES]) for at in starts) == expected:
                return content
            if attempt + 1 < _READS:
                where = f"{self._bucket.url(key)}: bytes {offset} to {offset + size}"
                logger.warning("%s fail their checksum: this part is read again", where)
        raise CorruptCheckpointError(
            f"{self._bucket.url(key)}: damaged: bytes {offset} to {offset + size} fail their checksum. Use another "
            "checkpoint."
        )

    def _content(self, part: _Part, requested: Future[memoryview]) -> tuple[memoryview, int | None]:
        skipped = part.offset - part.pieces.start * manifests.PIECE_BYTES
        content = requested.result()
        if part.size < content.nbytes:
            return content[skipped : skipped + part.size], None
        self._kept.pop((part.number, part.pieces), None)  # nothing else is in it
        crc = 0
        for number in part.pieces:
            size = min(manifests.PIECE_BYTES, self._manifest.sizes[part.number] - number * manifests.PIECE_BYTES)
            crc = combine(crc, self._manifest.checks[part.number][number], size)
        return content, crc

    def _key(self, number: int) -> str:
        return f"{self._folder}/{self._manifest.objects[number]}"
