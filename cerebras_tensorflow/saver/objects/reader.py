"""Reads a checkpoint in object storage: its manifest, then its tensors from the stream of its data objects."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from cerebras_tensorflow.errors import CheckpointError, CorruptCheckpointError
from cerebras_tensorflow.locations import ObjectLocation
from cerebras_tensorflow.saver.bundle import string_tensor
from cerebras_tensorflow.saver.files.checksum import combine, crc32c
from cerebras_tensorflow.saver.hdf5 import format as h5_format
from cerebras_tensorflow.saver.hdf5.index import H5Record
from cerebras_tensorflow.saver.interface import (
    BytesLike,
    TensorEntry,
    TensorReader,
    holds_strings,
    missing_tensor,
    row_range,
    target_view,
)
from cerebras_tensorflow.saver.objects import manifest as manifests
from cerebras_tensorflow.saver.objects.read_ahead import ReadAhead
from cerebras_tensorflow.saver.objects.store import Bucket, sizes_of


class Orders:
    """Guesses what is read next: callers read in an order that they have told, by name, or in the order of the save.

    Args:
        records: The tensors, in the order in which they were saved.
        told: The order in which the caller will read; None: it has told none.
    """

    def __init__(self, records: Mapping[str, H5Record], told: Sequence[str] | None = None) -> None:
        self._records = records
        self._is_told = told is not None
        self._orders: list[Sequence[str]] = [sorted(records), list(records)] if told is None else [told]
        self._places = [{name: place for place, name in enumerate(order)} for order in self._orders]
        self._order = 0
        self._last: str | None = None

    def after(self, name: str) -> Iterator[H5Record]:
        """Return the tensors that follow one that is read now; none if it does not follow the one before.

        A small first one, such as the step, may be the only one: nothing is read ahead for it, unless the caller has
        told that it will read more.
        """
        last, self._last = self._last, name
        if last is None:
            is_large = self._is_told or self._records[name].num_bytes >= manifests.PIECE_BYTES
            fits = [is_large and place.get(name) == 0 for place in self._places]
        else:
            fits = [last in place and place.get(name) == place[last] + 1 for place in self._places]
        order = self._order if fits[self._order] else (fits.index(True) if any(fits) else None)
        if order is None:
            return iter(())
        self._order = order
        start = self._places[order][name] + 1
        following = itertools.islice(self._orders[order], start, None)
        return (self._records[one] for one in following if one in self._records)


class NoManifestError(CheckpointError):
    """There is no checkpoint at a URL."""


class ObjectReader(TensorReader):
    """The tensors of a checkpoint in object storage.

    Args:
        location: The checkpoint.

    Raises:
        NoManifestError: If there is no manifest.
        CheckpointError: If it cannot be read.
        CorruptCheckpointError: If it is damaged.
    """

    reads_ahead = True

    def __init__(self, location: ObjectLocation) -> None:
        self.path = str(location)
        self._bucket = Bucket(location)
        self._folder = location.key
        found = manifests.read(self._bucket, self._folder)
        if found is None:
            raise NoManifestError(
                f"{self.path}: no checkpoint: it has no {manifests.NAME}. Copy files of other kinds to a folder first, "
                "and read them there."
            )
        self.manifest = found[0]
        self._orders = Orders(self.manifest.records)
        self._ahead: ReadAhead | None = ReadAhead(self._bucket, location.key, self.manifest)

    def names(self) -> list[str]:
        return sorted(self.manifest.records)

    def __contains__(self, name: object) -> bool:
        return name in self.manifest.records

    def entry(self, name: str) -> TensorEntry:
        return self._record(name).entry()

    def will_read(self, names: Iterable[str]) -> None:
        self._orders = Orders(self.manifest.records, list(names))

    def read(self, name: str) -> np.ndarray[Any, Any]:
        record = self._record(name)
        stored = np.empty(record.num_bytes, np.uint8)
        self._fill(name, record, stored)
        entry = record.entry()
        if record.type_name != h5_format.STRING_TYPE:
            return stored.view(entry.dtype).reshape(entry.shape)
        try:
            elements, _ = string_tensor.decode(stored.tobytes(), h5_format.num_elements(record.shape))
        except ValueError as exc:
            raise self._corrupt(name, str(exc)) from exc
        return string_tensor.to_array(elements, record.shape)

    def read_into(self, name: str, buffer: BytesLike) -> None:
        record = self._record(name)
        self._fill(name, record, target_view(self, name, record.entry(), buffer))

    def read_slice(self, name: str, start: int, stop: int) -> np.ndarray[Any, Any]:
        record = self._record(name)
        entry = record.entry()
        start, stop = row_range(self, name, entry.shape, start, stop)
        if record.type_name == h5_format.STRING_TYPE:
            return self.read(name)[start:stop]
        row_bytes = h5_format.num_elements(entry.shape[1:]) * entry.dtype.itemsize
        rows = np.empty((stop - start) * row_bytes, np.uint8)
        position = 0
        if self._ahead is None:
            raise CheckpointError(f"{self.path}: this reader is closed")
        for piece in self._ahead.read_exactly(record.offset + start * row_bytes, rows.size):
            rows[position : position + piece.nbytes] = piece
            position += piece.nbytes
        return rows.view(entry.dtype).reshape(stop - start, *entry.shape[1:])

    def chunks(self, name: str) -> Iterator[BytesLike]:
        record = self._record(name)
        if record.type_name == h5_format.STRING_TYPE:
            raise holds_strings(self, name)
        yield from self._checked(name, record)

    def verify(self) -> int:
        self.check_complete()
        self.will_read(self.manifest.records)
        for name, record in self.manifest.records.items():
            for _ in self._checked(name, record):
                pass
        return sum(record.num_bytes for record in self.manifest.records.values())

    def check_complete(self) -> None:
        keys = [self._key(number) for number in range(len(self.manifest.objects))]
        sizes = sizes_of(self._bucket, self._folder, keys)
        for key, size, expected in zip(keys, sizes, self.manifest.sizes, strict=True):
            if size != expected:
                found = "it is missing" if size is None else f"it has {size} bytes instead of {expected}"
                raise CorruptCheckpointError(f"{self._bucket.url(key)}: {found}. Use another checkpoint.")

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def _record(self, name: str) -> H5Record:
        record = self.manifest.records.get(name)
        if record is None:
            raise missing_tensor(self, name)
        return record

    def _key(self, number: int) -> str:
        return f"{self._folder}/{self.manifest.objects[number]}"

    def _fill(self, name: str, record: H5Record, target: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        position = 0
        for piece in self._checked(name, record, is_deep=True):
            target[position : position + piece.nbytes] = piece
            position += piece.nbytes

    def _checked(self, name: str, record: H5Record, is_deep: bool = False) -> Iterator[memoryview]:
        """Yield a tensor's bytes, in order. After the last ones, compare the checksum."""
        if self._ahead is None:
            raise CheckpointError(f"{self.path}: this reader is closed")
        following = ((one.offset, one.num_bytes) for one in self._orders.after(name))
        crc = 0
        for piece, known in self._ahead.read(record.offset, record.num_bytes, is_deep, following):
            crc = crc32c(piece, crc) if known is None else combine(crc, known, piece.nbytes)
            yield piece
        if crc != record.crc:
            raise self._corrupt(name, "it fails its checksum")

    def _corrupt(self, name: str, problem: str) -> CorruptCheckpointError:
        return CorruptCheckpointError(f"{self.path}: tensor {name!r} is damaged: {problem}. Use another checkpoint.")
