"""Reading a tensor bundle: the whole index first, then one value at a time, compared with its checksum."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from cerebras_tensorflow import files
from cerebras_tensorflow.errors import CheckpointError, CorruptCheckpointError
from cerebras_tensorflow.locations import local_path
from cerebras_tensorflow.saver.bundle import format as bundle_format
from cerebras_tensorflow.saver.bundle import string_tensor
from cerebras_tensorflow.saver.bundle.format import BundleEntry
from cerebras_tensorflow.saver.bundle.ordered_code import slice_key
from cerebras_tensorflow.saver.bundle.sstable import read_table
from cerebras_tensorflow.saver.bundle.tensor_types import STRING, UNSUPPORTED, dtype_of
from cerebras_tensorflow.saver.files import extents
from cerebras_tensorflow.saver.files.checksum import mask, unmask
from cerebras_tensorflow.saver.interface import (
    BytesLike,
    StoredExtent,
    TensorEntry,
    TensorReader,
    as_bytes,
    holds_strings,
    missing_tensor,
    row_range,
    target_view,
)

# An index of a million tensors takes about 100 MB.
_MAX_INDEX_BYTES = 256 << 20


class BundleReader(TensorReader):
    """The tensors of a TensorFlow V2 checkpoint.

    The class has more than 20 methods: 13 implement TensorReader, and the others read one file and check its content.

    Args:
        prefix: Path without the endings, as `tf.train.latest_checkpoint` returns it.

    Raises:
        CheckpointError: If there is no such checkpoint, or it is big-endian.
        CorruptCheckpointError: If the index is damaged.
    """

    def __init__(self, prefix: str | os.PathLike[str]) -> None:
        self.path = local_path(prefix)
        self._fds: dict[int, int] = {}
        self._closed = False
        index_path = bundle_format.index_path(self.path)
        try:
            data = files.read_regular(index_path, _MAX_INDEX_BYTES)
        except OSError as exc:
            raise CheckpointError(
                f"{self.path}: not a TensorFlow checkpoint: {index_path}: {exc.strerror}. Give the prefix, as in "
                "model_dir/model.ckpt-100, without .index or .data."
            ) from exc
        try:
            self._records = dict(read_table(data))
            header = bundle_format.decode_header(self._records.pop(bundle_format.HEADER_KEY))
        except KeyError:
            raise CorruptCheckpointError(f"{index_path}: the bundle's header is missing") from None
        except ValueError as exc:
            raise CorruptCheckpointError(
                f"{index_path}: damaged or not a checkpoint's index: {exc}. Use another checkpoint."
            ) from exc
        if header.is_big_endian:
            raise CheckpointError(f"{index_path}: written on a big-endian machine; convert it there first")
        if header.num_shards < 1:
            raise CorruptCheckpointError(f"{index_path}: the header declares {header.num_shards} data files")
        self._num_shards = header.num_shards

    @property
    def num_shards(self) -> int:
        """Number of data files, as the index declares it."""
        return self._num_shards

    def names(self) -> list[str]:
        # Keys that begin with NUL are the pieces of partitioned tensors.
        return [_name(key) for key in self._records if not key.startswith(b"\0")]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and _key(name) in self._records

    def entry(self, name: str) -> TensorEntry:
        record = self._record(name)
        dtype = self._dtype(name, record)
        if record.type_number == STRING:
            return TensorEntry(dtype, record.shape, record.size)
        return TensorEntry(dtype, record.shape, bundle_format.num_elements(record.shape) * dtype.itemsize)

    def extent(self, name: str) -> StoredExtent | None:
        record = self._record(name)
        if record.slices or record.type_number == STRING:
            return None
        self._checked(name)
        path = bundle_format.data_path(self.path, record.shard, self._num_shards)
        return StoredExtent(path, record.offset, unmask(record.crc))

    def read(self, name: str) -> np.ndarray[Any, Any]:
        entry = self.entry(name)
        if entry.dtype.kind == "O":
            return self._read_strings(name)
        self._checked(name)
        array = np.empty(entry.shape, entry.dtype)
        self.read_into(name, array)
        return array

    def read_into(self, name: str, buffer: BytesLike) -> None:
        entry = self.entry(name)
        target = target_view(self, name, entry, buffer)
        record = self._record(name)
        if not record.slices:
            self._fill(name, record, target)
            return
        self._check_whole(name, record)
        whole = target.view(entry.dtype).reshape(entry.shape)
        for index, piece in self._pieces(name, record):
            part = np.empty(piece.shape, entry.dtype)
            self._fill(name, piece, part.reshape(-1).view(np.uint8))
            whole[index] = part

    def read_region(self, name: str, region: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        entry, record = self.entry(name), self._record(name)
        if not record.slices:
            return self.read(name)[region]
        self._checked(name)
        values = np.empty(tuple(dim.stop - dim.start for dim in region), entry.dtype)
        num_read = 0
        for index, piece in self._pieces(name, record):
            shared = bundle_format.common(index, region)
            if shared is not None:
                part = np.empty(piece.shape, entry.dtype)
                self._fill(name, piece, part.reshape(-1).view(np.uint8))
                values[bundle_format.within(shared, region)] = part[bundle_format.within(shared, index)]
                num_read += values[bundle_format.within(shared, region)].size
        if num_read < values.size:
            raise self._gap(name)
        return values

    def read_slice(self, name: str, start: int, stop: int) -> np.ndarray[Any, Any]:
        entry = self.entry(name)
        start, stop = row_range(self, name, entry.shape, start, stop)
        if entry.dtype.kind == "O":
            return self._read_strings(name)[start:stop]
        self._checked(name)
        record = self._record(name)
        rows = np.empty((stop - start, *entry.shape[1:]), entry.dtype)
        if not record.slices:
            row_bytes = bundle_format.num_elements(entry.shape[1:]) * entry.dtype.itemsize
            self._pread(name, record, start * row_bytes, rows.reshape(-1).view(np.uint8))
            return rows
        self._check_whole(name, record)
        for index, piece in self._pieces(name, record):
            first, last = max(index[0].start, start), min(index[0].stop, stop)
            if first < last:
                part = np.empty((last - first, *piece.shape[1:]), entry.dtype)
                row_bytes = bundle_format.num_elements(piece.shape[1:]) * entry.dtype.itemsize
                skipped_bytes = (first - index[0].start) * row_bytes
                self._pread(name, piece, skipped_bytes, part.reshape(-1).view(np.uint8))
                rows[(slice(first - start, last - start), *index[1:])] = part
        return rows

    def chunks(self, name: str) -> Iterator[BytesLike]:
        entry = self.entry(name)
        if entry.dtype.kind == "O":
            raise holds_strings(self, name)
        record = self._record(name)
        self._checked(name)
        if not record.slices:
            yield from self._stream(name, record)
            return
        self._check_whole(name, record)
        # Check the pieces first: reading rows of the whole tensor reads only parts of them, without checksums.
        for _, piece in self._pieces(name, record):
            for _ in self._stream(name, piece):
                pass
        rows = entry.shape[0]
        step = max(extents.STREAM_BYTES * rows // max(entry.num_bytes, 1), 1)
        for start in range(0, rows, step):
            yield as_bytes(self.read_slice(name, start, start + step))

    def verify(self) -> int:
        num_bytes = 0
        for name, pieces in self._all_pieces().items():
            for piece in pieces:
                num_bytes += piece.size
                if piece.type_number == STRING:
                    self._read_strings(name)
                    continue
                try:
                    crc = extents.checksum(self._fd(piece.shard), piece.offset, piece.size)
                except EOFError as exc:
                    self._check_end(name, piece)
                    raise CorruptCheckpointError(f"{self.path}: tensor {name!r} is cut short: {exc}") from exc
                self._check_crc(name, piece, crc)
        return num_bytes

    def close(self) -> None:
        self._closed = True
        for fd in self._fds.values():
            os.close(fd)
        self._fds = {}

    def check_places(self) -> None:
        self.check_complete()

    def check_complete(self) -> None:
        self._all_pieces()

    def _all_pieces(self) -> dict[str, list[BundleEntry]]:
        """Return the records that make up each tensor, after checking their sizes."""
        pieces = {name: self._checked(name) for name in self.names()}
        shard_bytes: dict[int, int] = {}
        for piece in itertools.chain.from_iterable(pieces.values()):
            shard_bytes[piece.shard] = shard_bytes.get(piece.shard, 0) + piece.size
        # If tensors could share bytes, reading a small file could take any amount of time.
        for shard, num_bytes in shard_bytes.items():
            if num_bytes > os.fstat(self._fd(shard)).st_size:
                path = bundle_format.data_path(self.path, shard, self._num_shards)
                raise CorruptCheckpointError(
                    f"{path}: its tensors have {num_bytes} bytes, more than the file: some overlap. Use another "
                    "checkpoint."
                )
        return pieces

    def _dtype(self, name: str, record: BundleEntry) -> np.dtype[Any]:
        if record.type_number in UNSUPPORTED:
            kind = UNSUPPORTED[record.type_number]
            raise CheckpointError(f"{self.path}: tensor {name!r}: element type {kind} has no NumPy counterpart")
        try:
            return dtype_of(record.type_number)
        except ValueError as exc:
            raise CorruptCheckpointError(f"{self.path}.index: tensor {name!r}: {exc}. Use another checkpoint.") from exc

    def _record(self, name: str) -> BundleEntry:
        data = self._records.get(_key(name))
        if data is None:
            raise missing_tensor(self, name)
        return self._decode(name, data)

    def _decode(self, name: str, data: bytes) -> BundleEntry:
        try:
            record = bundle_format.decode_entry(data)
        except ValueError as exc:
            raise CorruptCheckpointError(f"{self.path}.index: tensor {name!r}: {exc}") from exc
        if record.shard >= self._num_shards:
            raise CorruptCheckpointError(
                f"{self.path}.index: tensor {name!r} is in data file {record.shard} of {self._num_shards}"
            )
        return record

    def _pieces(self, name: str, record: BundleEntry) -> Iterator[tuple[tuple[slice, ...], BundleEntry]]:
        """Yield (index in the whole tensor, record) for each piece of a partitioned tensor."""
        try:
            indexes = bundle_format.tiles(record.slices, record.shape)
        except ValueError as exc:
            raise CorruptCheckpointError(f"{self.path}.index: tensor {name!r}: {exc}") from exc
        for piece_extents, index in zip(record.slices, indexes, strict=True):
            data = self._records.get(slice_key(_key(name), piece_extents))
            if data is None:
                raise CorruptCheckpointError(f"{self.path}.index: tensor {name!r}: piece {piece_extents} is missing")
            piece = self._decode(name, data)
            if piece.shape != tuple(part.stop - part.start for part in index):
                raise CorruptCheckpointError(
                    f"{self.path}.index: tensor {name!r}: piece {piece_extents} has shape {piece.shape}"
                )
            yield index, piece

    def _check_whole(self, name: str, record: BundleEntry) -> None:
        """Raise a CheckpointError if the pieces of a tensor leave a gap."""
        if sum(bundle_format.num_elements(piece.shape) for _, piece in self._pieces(name, record)) < (
            bundle_format.num_elements(record.shape)
        ):
            raise self._gap(name)

    def _gap(self, name: str) -> CheckpointError:
        return CheckpointError(
            f"{self.path}: tensor {name!r} has no value in a part of its shape: the program that wrote the checkpoint "
            "saved only some parts of it. Only these parts can be read."
        )

    def _checked(self, name: str) -> list[BundleEntry]:
        """Return the records that make up a tensor, after checking their sizes against its shape and the file.

        Call it before allocating memory for the tensor.
        """
        record = self._record(name)
        pieces = [piece for _, piece in self._pieces(name, record)] if record.slices else [record]
        for piece in pieces:
            if piece.type_number != record.type_number:
                raise CorruptCheckpointError(f"{self.path}.index: tensor {name!r}: its pieces differ in type")
            if piece.type_number != STRING:
                expected = bundle_format.num_elements(piece.shape) * self._dtype(name, piece).itemsize
                if piece.size != expected:
                    raise CorruptCheckpointError(
                        f"{self.path}.index: tensor {name!r} of shape {piece.shape} declares {piece.size} bytes, "
                        f"expected {expected}"
                    )
            self._check_end(name, piece)
        return pieces

    def _check_end(self, name: str, record: BundleEntry) -> None:
        size = os.fstat(self._fd(record.shard)).st_size
        if record.offset + record.size > size:
            path = bundle_format.data_path(self.path, record.shard, self._num_shards)
            raise CorruptCheckpointError(
                f"{path}: truncated: tensor {name!r} ends at byte {record.offset + record.size}, the file at {size}. "
                "Use another checkpoint."
            )

    def _fill(self, name: str, record: BundleEntry, target: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        if target.size != record.size:
            raise CorruptCheckpointError(
                f"{self.path}.index: tensor {name!r} of shape {record.shape} declares {record.size} bytes, "
                f"expected {target.size}"
            )
        try:
            crc = extents.fill_checked(self._fd(record.shard), record.offset, target)
        except EOFError as exc:
            self._check_end(name, record)
            raise CorruptCheckpointError(f"{self.path}: tensor {name!r} is cut short: {exc}") from exc
        self._check_crc(name, record, crc)

    def _stream(self, name: str, record: BundleEntry) -> Iterator[extents.Bytes]:
        try:
            crc = yield from extents.stream(self._fd(record.shard), record.offset, record.size)
        except EOFError as exc:
            self._check_end(name, record)
            raise CorruptCheckpointError(f"{self.path}: tensor {name!r} is cut short: {exc}") from exc
        self._check_crc(name, record, crc)

    def _check_crc(self, name: str, record: BundleEntry, crc: int) -> None:
        if mask(crc) != record.crc:
            path = bundle_format.data_path(self.path, record.shard, self._num_shards)
            raise CorruptCheckpointError(
                f"{path}: tensor {name!r} (bytes {record.offset} to {record.offset + record.size}) is damaged: its "
                f"checksum is {mask(crc):#010x}, the index says {record.crc:#010x}. Use another checkpoint."
            )

    def _pread(self, name: str, record: BundleEntry, start: int, target: extents.Bytes) -> None:
        try:
            extents.fill(self._fd(record.shard), record.offset + start, target)
        except EOFError as exc:
            self._check_end(name, record)
            raise CorruptCheckpointError(f"{self.path}: tensor {name!r} is cut short: {exc}") from exc

    def _read_strings(self, name: str) -> np.ndarray[Any, Any]:
        record = self._record(name)
        if record.slices:
            raise CheckpointError(f"{self.path}: tensor {name!r}: partitioned string tensors are not supported")
        self._check_end(name, record)
        stored = np.empty(record.size, np.uint8)
        self._pread(name, record, 0, stored)
        try:
            elements, crc = string_tensor.decode(stored.tobytes(), bundle_format.num_elements(record.shape))
        except ValueError as exc:
            raise CorruptCheckpointError(f"{self.path}: tensor {name!r} is damaged: {exc}") from exc
        self._check_crc(name, record, crc)
        return string_tensor.to_array(elements, record.shape)

    def _fd(self, shard: int) -> int:
        if self._closed:
            raise CheckpointError(f"{self.path}: this reader is closed")
        fd = self._fds.get(shard)
        if fd is None:
            path = bundle_format.data_path(self.path, shard, self._num_shards)
            try:
                fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as exc:
                raise CorruptCheckpointError(
                    f"{path}: data file {shard + 1} of {self._num_shards} of this checkpoint: {exc.strerror}. "
                    "Restore it beside the index, or use another checkpoint."
                ) from exc
            self._fds[shard] = fd
        return fd


def _key(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _name(key: bytes) -> str:
    return key.decode("utf-8", "surrogateescape")
