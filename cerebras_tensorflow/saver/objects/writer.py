"""Writes a checkpoint to object storage: data objects under unique names, then the manifest that commits them.

The values are one stream of bytes, cut into objects. Each object is one request, and its content stays in memory until
it is written, so the writer can repeat any failed request. It sends several objects at a time. It uses no multipart
uploads, so a killed writer cannot leave any behind.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterable, Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from cerebras_tensorflow.errors import CheckpointError, CorruptCheckpointError
from cerebras_tensorflow.locations import ObjectLocation
from cerebras_tensorflow.saver.bundle import string_tensor
from cerebras_tensorflow.saver.files.checksum import crc32c
from cerebras_tensorflow.saver.hdf5 import format as h5_format
from cerebras_tensorflow.saver.hdf5.index import H5Record
from cerebras_tensorflow.saver.interface import BytesLike, TensorWriter, as_bytes, flat_view
from cerebras_tensorflow.saver.objects import manifest as manifests
from cerebras_tensorflow.saver.objects.store import Bucket, ConflictError, Version, sizes_of

# One connection to a bucket carries some 50 MB/s, so the rate depends on the number of requests at a time: eight small
# objects, or four large ones.
_SMALLEST_BYTES = 16 << 20
_LARGEST_BYTES = 32 << 20
# After every so many objects, the size of an object grows by the smallest size, up to the largest. So a terabyte takes
# about 30,000 objects.
_OBJECTS_OF_A_SIZE = 1000
# Content being sent, in addition to the object that is being filled.
_SENDING_BYTES = 128 << 20
_THREADS = 8


class ObjectWriter(TensorWriter):
    """A checkpoint being written to object storage.

    Args:
        location: The checkpoint. An existing one stays readable until the new one is complete and replaces it.

    Raises:
        CheckpointError: If the bucket cannot be reached.
    """

    def __init__(self, location: ObjectLocation) -> None:
        self.path = str(location)
        if not location.key:
            raise CheckpointError(
                f"{self.path}: a bucket; give the checkpoint's own name too, as in {self.path}/model-ckpt-100"
            )
        self._bucket = Bucket(location)
        self._folder = location.key
        self._unique = f"{time.time_ns():x}{secrets.token_hex(4)}"
        self._records: dict[str, H5Record] = {}
        self._names: list[str] = []
        self._sizes: list[int] = []
        self._checks: list[tuple[int, ...]] = []
        self._filling = bytearray()
        self._num_bytes = 0
        self._pool = ThreadPoolExecutor(_THREADS, "object-writer")
        self._sending: dict[Future[None], int] = {}
        self._is_open = self._is_whole = True
        existing = self._bucket.get(self._manifest_key)
        self._replaced = existing[1] if existing is not None else None
        self._old = data_keys(self._bucket, self._folder, existing[0]) if existing is not None else []

    def add(self, name: str, array: Any) -> None:
        array = np.asarray(array)
        if h5_format.type_name(array.dtype) != h5_format.STRING_TYPE:
            self.add_chunks(name, array.dtype, array.shape, [as_bytes(array)])
            return
        stored, _ = string_tensor.encode(string_tensor.to_elements(array))
        self._add(name, h5_format.STRING_TYPE, array.shape, len(stored), [stored])

    def add_chunks(self, name: str, dtype: Any, shape: tuple[int, ...], chunks: Iterable[BytesLike]) -> None:
        type_name = h5_format.type_name(np.dtype(dtype))
        if type_name == h5_format.STRING_TYPE:
            raise ValueError(f"{name}: strings cannot be added in chunks; use add")
        shape = tuple(int(dim) for dim in shape)
        num_bytes = h5_format.num_elements(shape) * h5_format.dtype_named(type_name).itemsize
        self._add(name, type_name, shape, num_bytes, chunks)

    def commit(self) -> None:
        self._check_open()
        try:
            self._check_whole()
            self._send()
            self._wait(0)
            self._check_present()
            manifest = manifests.Manifest(self._records, tuple(self._names), tuple(self._sizes), tuple(self._checks))
            content = manifests.encode(manifest)
        except BaseException:
            self.abort()
            raise
        # After an error from here on the manifest may be there, or arrive later: `abort` must keep the data objects.
        # A sweep removes them if it is not.
        self._end()
        put_manifest(self._bucket, self._folder, content, self._replaced, [self._key(name) for name in self._names])
        # The checkpoint is committed: what is left of the old one costs space only, and a sweep finds it.
        with contextlib.suppress(CheckpointError):
            self._bucket.delete(self._old)

    def abort(self) -> None:
        if not self._is_open:
            return
        for future in self._sending:
            future.cancel()
        self._end()
        self._delete_data()

    @property
    def _manifest_key(self) -> str:
        return f"{self._folder}/{manifests.NAME}"

    def _delete_data(self) -> None:
        with contextlib.suppress(CheckpointError):
            self._bucket.delete([self._key(name) for name in self._names])

    def _key(self, name: str) -> str:
        return f"{self._folder}/{name}"

    def _check_whole(self) -> None:
        if not self._is_whole:
            raise CheckpointError(f"{self.path}: an earlier error has lost values; open a new writer to write again")

    def _check_present(self) -> None:
        """Check that the data objects are there: a sweep takes those of a long write for leftovers."""
        keys = [self._key(name) for name in self._names]
        for name, size, found in zip(self._names, self._sizes, sizes_of(self._bucket, self._folder, keys), strict=True):
            if found != size:
                raise CheckpointError(
                    f"{self.path}: {name} was removed or changed before the checkpoint was complete. Save it again, "
                    "and give cs-checkpoint sweep an --older-than above the duration of a save."
                )

    def _add(
        self, name: str, type_name: str, shape: tuple[int, ...], num_bytes: int, chunks: Iterable[BytesLike]
    ) -> None:
        self._check_open()
        self._check_whole()
        if name in self._records:
            raise ValueError(f"{self.path}: tensor {name!r} is added twice")
        offset, crc, done = self._num_bytes, 0, 0
        for chunk in chunks:
            view = flat_view(chunk)
            done += view.size
            if done > num_bytes:
                raise ValueError(f"{name}: the chunks hold more than the {num_bytes} bytes of its shape and type")
            crc = crc32c(view, crc)
            self._append(view)
        if done != num_bytes:
            raise ValueError(f"{name}: the chunks hold {done} bytes, its shape and type need {num_bytes}")
        self._records[name] = H5Record(type_name, shape, offset, num_bytes, crc)

    def _append(self, view: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        # Stays so if an error ends the loop: the stream then lacks bytes.
        self._is_whole = False
        while view.size:
            grown = _SMALLEST_BYTES * (1 + len(self._names) // _OBJECTS_OF_A_SIZE)
            room = min(grown, _LARGEST_BYTES) - len(self._filling)
            part = view[:room]
            self._filling += part.data
            self._num_bytes += part.size
            view = view[part.size :]
            if part.size == room:
                self._send()
        self._is_whole = True

    def _send(self) -> None:
        """Send the object that is being filled, in the background."""
        if not self._filling:
            return
        content, self._filling = self._filling, bytearray()
        self._wait(_SENDING_BYTES - len(content))
        self._names.append(f"data-{self._unique}-{len(self._names):05d}")
        self._sizes.append(len(content))
        pieces = range(0, len(content), manifests.PIECE_BYTES)
        with memoryview(content) as view:
            self._checks.append(tuple(crc32c(view[start : start + manifests.PIECE_BYTES]) for start in pieces))
        sent = self._pool.submit(self._bucket.put, self._key(self._names[-1]), content)
        self._sending[sent] = len(content)

    def _wait(self, limit: int) -> None:
        """Wait until at most `limit` bytes are being sent. Raise the error of a failed request."""
        while self._sending:
            is_full = sum(self._sending.values()) > limit
            done = futures.wait(self._sending, None if is_full else 0, futures.FIRST_COMPLETED).done
            for future in done:
                del self._sending[future]
                future.result()
            if not done:
                return

    def _end(self) -> None:
        self._is_open = False
        self._pool.shutdown()

    def _check_open(self) -> None:
        if not self._is_open:
            raise CheckpointError(f"{self.path}: this writer has ended; open a new one to write again")


def put_manifest(bucket: Bucket, folder: str, content: bytes, replaced: Version | None, data: Sequence[str]) -> None:
    """Commit a checkpoint, if no other writer was first.

    Args:
        bucket: Its bucket.
        folder: Its key.
        content: The manifest.
        replaced: Version of the manifest to replace; None: there must be none.
        data: Keys of the data objects, which are removed if another writer was first.

    Raises:
        CheckpointError: If another writer was first, or the manifest cannot be written.
    """
    key = f"{folder}/{manifests.NAME}"
    try:
        bucket.put_if(key, content, replaced)
    except ConflictError as exc:
        # If the response to a successful request was lost, the store refused the repeated request.
        try:
            found = manifests.read(bucket, folder)
        except CorruptCheckpointError as damage:  # it may be ours: the data stays
            raise CheckpointError(
                f"{bucket.url(folder)}: there is a manifest already, and it is damaged, so it is unknown whose it "
                "is. Save under another name. cs-checkpoint sweep removes data that no manifest names."
            ) from damage
        if found is not None and found[1] == content:
            return
        with contextlib.suppress(CheckpointError):
            bucket.delete(data)
        raise CheckpointError(
            f"{bucket.url(folder)}: another process has written this checkpoint meanwhile; its version stays. Give one "
            "of them another name."
        ) from exc


def remove(location: ObjectLocation) -> None:
    """Remove a checkpoint: the manifest first, then its data objects."""
    bucket, key = Bucket(location), f"{location.key}/{manifests.NAME}"
    found = bucket.get(key)
    if found is not None:
        data = data_keys(bucket, location.key, found[0])
        bucket.delete([key])
        bucket.delete(data)


def version_of(location: ObjectLocation) -> Version | None:
    """Return the version of the manifest at a location; None if there is no committed checkpoint."""
    return Bucket(location).version(f"{location.key}/{manifests.NAME}")


def exists(location: ObjectLocation) -> bool:
    """Whether there is a committed checkpoint at a location."""
    return version_of(location) is not None


def data_keys(bucket: Bucket, folder: str, content: bytes) -> list[str]:
    """Return the keys of a checkpoint's data objects; none if its manifest is damaged. A sweep removes these later."""
    try:
        return [f"{folder}/{name}" for name in manifests.decode(bucket.url(folder), content).objects]
    except CheckpointError:
        return []
