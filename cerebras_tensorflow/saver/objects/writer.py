"""Writes a checkpoint to object storage: data objects under unique names, then the manifest that commits them.

A large tensor fills objects of its own, so another process that holds the tensor can write them. Small tensors share
objects, which come last in the stream of the checkpoint. The names and sizes of the objects follow from the tensors
alone. Each object is one request, and its content stays in memory until it is written, so the writer can repeat any
failed request. It uses no multipart uploads, so a killed writer cannot leave any behind.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cerebras_tensorflow.errors import CheckpointError, CorruptCheckpointError
from cerebras_tensorflow.locations import ObjectLocation
from cerebras_tensorflow.saver.bundle import string_tensor
from cerebras_tensorflow.saver.files.checksum import crc32c
from cerebras_tensorflow.saver.hdf5 import format as h5_format
from cerebras_tensorflow.saver.hdf5.index import H5Record
from cerebras_tensorflow.saver.interface import BytesLike, TensorWriter, as_bytes, check_written, flat_view
from cerebras_tensorflow.saver.objects import manifest as manifests
from cerebras_tensorflow.saver.objects.sender import ObjectSender
from cerebras_tensorflow.saver.objects.store import Bucket, ConflictError, Version, sizes_of
from cerebras_tensorflow.saver.parts import Part, Written, even_sizes

_SMALLEST_BYTES = 16 << 20
_LARGEST_BYTES = 32 << 20
# After every so many objects, the size of an object grows by the smallest size, up to the largest. So a terabyte takes
# about 30,000 objects.
_OBJECTS_OF_A_SIZE = 1000
_ALONE_BYTES = 4 << 20
"""A tensor of this size has objects of its own."""


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
        self._records: dict[str, H5Record] = {}  # offsets: in the large tensors' objects, or in the shared ones
        self._large: dict[str, list[tuple[str, int]]] = {}  # names and sizes of the objects of each large tensor
        self._large_checks: dict[str, tuple[tuple[int, ...], ...]] = {}
        self._shared: list[tuple[str, int]] = []
        self._shared_checks: list[tuple[int, ...]] = []
        self._num_objects = 0
        self._filling = bytearray()
        self._large_bytes = self._shared_bytes = 0
        self._sender = ObjectSender(self._bucket)
        self._is_open = self._is_whole = True
        existing = self._bucket.get(self._key(manifests.NAME))
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

    def place(self, name: str, dtype: Any, shape: tuple[int, ...]) -> Part | None:
        type_name = h5_format.type_name(np.dtype(dtype))
        shape = tuple(int(dim) for dim in shape)
        num_bytes = h5_format.num_elements(shape) * np.dtype(dtype).itemsize
        if type_name == h5_format.STRING_TYPE or num_bytes < _ALONE_BYTES:
            return None
        self._check_new(name)
        return Part(self.path, num_bytes, objects=tuple(self._add_large(name, type_name, shape, num_bytes)))

    def placed(self, name: str, written: Written) -> None:
        self._large_checks[name] = written.checks
        self._records[name] = replace(self._records[name], crc=written.crc)

    def commit(self) -> None:
        self._check_open()
        try:
            self._check_whole()
            check_written(self.path, self._large.keys() - self._large_checks.keys())
            self._send()
            self._sender.wait()
            _check_present(self._bucket, self._folder, self._objects)
            content = manifests.encode(self._manifest())
        except BaseException:
            self.abort()
            raise
        # After an error from here on the manifest may be there, or arrive later: `abort` must keep the data objects.
        # A sweep removes them if it is not.
        self._end()
        put_manifest(
            self._bucket, self._folder, content, self._replaced, [self._key(name) for name, _ in self._objects]
        )
        # The checkpoint is committed: what is left of the old one costs space only, and a sweep finds it.
        with contextlib.suppress(CheckpointError):
            self._bucket.delete(self._old)

    def abort(self) -> None:
        if self._is_open:
            self._end()
            with contextlib.suppress(CheckpointError):
                self._bucket.delete([self._key(name) for name, _ in self._objects])

    @property
    def _objects(self) -> list[tuple[str, int]]:
        """Name and size of each object, in the order of the stream."""
        return [*itertools.chain.from_iterable(self._large.values()), *self._shared]

    def _manifest(self) -> manifests.Manifest:
        checks = itertools.chain.from_iterable(self._large_checks[name] for name in self._large)
        records = {
            name: record if name in self._large else replace(record, offset=record.offset + self._large_bytes)
            for name, record in self._records.items()
        }
        names, sizes = zip(*self._objects, strict=True) if self._objects else ((), ())
        return manifests.Manifest(records, names, sizes, (*checks, *self._shared_checks))

    def _key(self, name: str) -> str:
        return f"{self._folder}/{name}"

    def _check_whole(self) -> None:
        if not self._is_whole:
            raise CheckpointError(f"{self.path}: an earlier error has lost values; open a new writer to write again")

    def _add(
        self, name: str, type_name: str, shape: tuple[int, ...], num_bytes: int, chunks: Iterable[BytesLike]
    ) -> None:
        self._check_new(name)
        if num_bytes >= _ALONE_BYTES:
            objects = self._add_large(name, type_name, shape, num_bytes)
            self._is_whole = False  # stays so if an error ends the call
            self.placed(name, self._sender.send_tensor(name, self._folder, objects, chunks))
            self._is_whole = True
            return
        offset, crc, done = self._shared_bytes, 0, 0
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

    def _add_large(
        self, name: str, type_name: str, shape: tuple[int, ...], num_bytes: int
    ) -> Sequence[tuple[str, int]]:
        """Append a large tensor; return the names and sizes of its objects."""
        sizes = even_sizes(num_bytes, self._object_bytes())
        self._large[name] = [(self._new_name(), size) for size in sizes]
        self._records[name] = H5Record(type_name, shape, self._large_bytes, num_bytes, 0)
        self._large_bytes += num_bytes
        return self._large[name]

    def _append(self, view: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        # Stays so if an error ends the loop: the stream then lacks bytes.
        self._is_whole = False
        while view.size:
            room = self._object_bytes() - len(self._filling)
            part = view[:room]
            self._filling += part.data
            self._shared_bytes += part.size
            view = view[part.size :]
            if part.size == room:
                self._send()
        self._is_whole = True

    def _send(self) -> None:
        """Send the shared object that is being filled, in the background."""
        if self._filling:
            content, self._filling = self._filling, bytearray()
            name = self._new_name()
            self._shared.append((name, len(content)))
            self._shared_checks.append(self._sender.send(self._key(name), content))

    def _object_bytes(self) -> int:
        """Return the largest size of the next object [B]."""
        return min(_SMALLEST_BYTES * (1 + self._num_objects // _OBJECTS_OF_A_SIZE), _LARGEST_BYTES)

    def _new_name(self) -> str:
        self._num_objects += 1
        return f"data-{self._unique}-{self._num_objects - 1:05d}"

    def _end(self) -> None:
        self._is_open = False
        self._sender.close()

    def _check_new(self, name: str) -> None:
        self._check_open()
        self._check_whole()
        if name in self._records:
            raise ValueError(f"{self.path}: tensor {name!r} is added twice")

    def _check_open(self) -> None:
        if not self._is_open:
            raise CheckpointError(f"{self.path}: this writer has ended; open a new one to write again")


def _check_present(bucket: Bucket, folder: str, objects: Sequence[tuple[str, int]]) -> None:
    """Check that the data objects are there: a sweep takes those of a long write for leftovers."""
    keys = [f"{folder}/{name}" for name, _ in objects]
    for (name, size), found in zip(objects, sizes_of(bucket, folder, keys), strict=True):
        if found != size:
            raise CheckpointError(
                f"{bucket.url(folder)}: {name} was removed or changed before the checkpoint was complete. Save it "
                "again, and give cs-checkpoint sweep an --older-than above the duration of a save."
            )


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
