"""Sends data objects in the background, several requests at a time and a bounded number of bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor

from cerebras_tensorflow.saver.files.checksum import combine, crc32c
from cerebras_tensorflow.saver.interface import BytesLike, flat_view
from cerebras_tensorflow.saver.objects import manifest as manifests
from cerebras_tensorflow.saver.objects.store import Bucket
from cerebras_tensorflow.saver.parts import Written

# One connection to a bucket carries some 50 MB/s, so the rate depends on the number of requests at a time: eight small
# objects, or four large ones.
_SENDING_BYTES = 128 << 20  # in addition to the object that is being filled
_THREADS = 8


class ObjectSender:
    """Sends objects to a bucket. Each stays in memory until it is written, so that any request can be repeated.

    Args:
        bucket: The bucket.
    """

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self._pool = ThreadPoolExecutor(_THREADS, "object-writer")
        self._sending: dict[Future[None], int] = {}

    def send(self, key: str, content: bytearray) -> tuple[int, ...]:
        """Send an object in the background; return the CRC-32C of each of its pieces.

        Raises:
            CheckpointError: If an earlier object cannot be written.
        """
        self.wait(_SENDING_BYTES - len(content))
        with memoryview(content) as view:
            starts = range(0, len(content), manifests.PIECE_BYTES)
            checks = tuple(crc32c(view[start : start + manifests.PIECE_BYTES]) for start in starts)
        self._sending[self._pool.submit(self._bucket.put, key, content)] = len(content)
        return checks

    def send_tensor(
        self, name: str, folder: str, objects: Sequence[tuple[str, int]], chunks: Iterable[BytesLike]
    ) -> Written:
        """Send the objects that one tensor fills.

        Args:
            name: The tensor, for errors.
            folder: Key of the checkpoint.
            objects: Name and size [B] of each object.
            chunks: The tensor's bytes, in pieces of any size.

        Raises:
            ValueError: If the pieces have another size together.
            CheckpointError: If an object cannot be written.
        """
        sizes = [size for _, size in objects]
        filling, checks = bytearray(), list[tuple[int, ...]]()
        for chunk in chunks:
            view = flat_view(chunk)
            while view.size:
                if len(checks) == len(sizes):
                    raise ValueError(f"{name}: the chunks hold more than the {sum(sizes)} bytes of its shape and type")
                part = view[: sizes[len(checks)] - len(filling)]
                filling += part.data
                view = view[part.size :]
                if len(filling) == sizes[len(checks)]:
                    checks.append(self.send(f"{folder}/{objects[len(checks)][0]}", filling))
                    filling = bytearray()
        if len(checks) < len(sizes):
            done = sum(sizes[: len(checks)]) + len(filling)
            raise ValueError(f"{name}: the chunks hold {done} bytes, its shape and type need {sum(sizes)}")
        return Written(crc_of(checks, sizes), tuple(checks))

    def wait(self, limit: int = 0) -> None:
        """Wait until at most `limit` bytes are being sent.

        Raises:
            CheckpointError: If an object cannot be written.
        """
        while self._sending:
            is_full = sum(self._sending.values()) > limit
            done = futures.wait(self._sending, None if is_full else 0, futures.FIRST_COMPLETED).done
            for future in done:
                del self._sending[future]
                future.result()
            if not done:
                return

    def close(self) -> None:
        """Send nothing more, and wait for the requests that have begun."""
        for future in self._sending:
            future.cancel()
        self._sending.clear()
        self._pool.shutdown()


def crc_of(checks: Sequence[Sequence[int]], sizes: Sequence[int]) -> int:
    """Return the CRC-32C of objects one after another.

    Args:
        checks: CRC-32C of each piece of each object.
        sizes: Size of each object [B].
    """
    crc = 0
    for crcs, size in zip(checks, sizes, strict=True):
        for number, piece in enumerate(crcs):
            crc = combine(crc, piece, min(manifests.PIECE_BYTES, size - number * manifests.PIECE_BYTES))
    return crc
