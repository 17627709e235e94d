"""Writing a tensor bundle: values stream to the data files, and the index appears last."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, BinaryIO

import numpy as np

from cerebras_tensorflow import files
from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.holes import is_hole, leave_hole
from cerebras_tensorflow.locations import local_path
from cerebras_tensorflow.saver.bundle import format as bundle_format
from cerebras_tensorflow.saver.bundle import string_tensor
from cerebras_tensorflow.saver.bundle.format import BundleEntry, BundleHeader
from cerebras_tensorflow.saver.bundle.sstable import write_table
from cerebras_tensorflow.saver.bundle.tensor_types import STRING, is_string, number_of
from cerebras_tensorflow.saver.files import writeback
from cerebras_tensorflow.saver.files.atomic import PartialFile, reporting
from cerebras_tensorflow.saver.files.checksum import crc32c, mask
from cerebras_tensorflow.saver.files.writeback import WRITE_BYTES, WriteBehind
from cerebras_tensorflow.saver.interface import BytesLike, Reservation, TensorWriter, as_bytes, check_written, flat_view
from cerebras_tensorflow.saver.parts import Part, Written

# Small enough that a piece is still in the CPU cache when its checksum is computed.
_PIECE_BYTES = 4 << 20
_MAX_SHARDS = 99_999


class BundleWriter(TensorWriter):
    """A TensorFlow V2 checkpoint being written.

    Args:
        prefix: Path without the endings, as `tf.train.Saver.save` returns it. An existing checkpoint stays
            readable until the new one is complete, and is then replaced.
        shard_of: Returns the number of a tensor's data file, from its name and size [B]; always 0 by default.
        is_durable: Whether `commit` waits for the disk.

    Raises:
        CheckpointError: If another process is writing this checkpoint, or the folder cannot be written.
    """

    def __init__(
        self,
        prefix: str | os.PathLike[str],
        shard_of: Callable[[str, int], int] | None = None,
        is_durable: bool = True,
    ) -> None:
        self.path = os.path.abspath(local_path(prefix))
        self._is_durable = is_durable
        self._shard_of = shard_of or (lambda _name, _num_bytes: 0)
        self._entries: dict[bytes, BundleEntry] = {}
        self._shards: dict[int, _Shard] = {}
        self._placed: set[str] = set()  # tensors whose bytes another process still writes
        self._index: PartialFile | None = PartialFile(bundle_format.index_path(self.path))

    def add(self, name: str, array: Any) -> None:
        array = np.asarray(array)
        if is_string(array.dtype):
            stored, crc = string_tensor.encode(string_tensor.to_elements(array))
            shard = self._shard(name, len(stored))
            offset = shard.position
            shard.write(flat_view(stored), self.path)
            self._register(name, BundleEntry(STRING, array.shape, shard.number, offset, len(stored), mask(crc)))
        else:
            self.add_chunks(name, array.dtype, array.shape, [as_bytes(array)])

    def add_chunks(self, name: str, dtype: Any, shape: tuple[int, ...], chunks: Iterable[BytesLike]) -> None:
        dtype, type_number, shape, size = _layout(name, dtype, shape)
        shard = self._shard(name, size)
        offset = shard.position
        shard.reserve(size, self.path)
        crc = 0
        for piece in _pieces(chunks):
            if shard.position + piece.size > offset + size:
                raise ValueError(f"{name}: the chunks hold more than the {size} bytes of {dtype} {shape}")
            if is_hole(piece):
                shard.leave_hole(piece.size, self.path)
            else:
                shard.write(piece, self.path)
            crc = crc32c(piece, crc)
        if shard.position != offset + size:
            raise ValueError(f"{name}: the chunks hold {shard.position - offset} bytes, {dtype} {shape} has {size}")
        self._register(name, BundleEntry(type_number, shape, shard.number, offset, size, mask(crc)))

    def reserve(self, name: str, dtype: Any, shape: tuple[int, ...], crc: int) -> Reservation:
        dtype, type_number, shape, size = _layout(name, dtype, shape)
        shard = self._shard(name, size)
        offset = shard.position
        shard.reserve(size, self.path)
        shard.skip(size, self.path)
        self._register(name, BundleEntry(type_number, shape, shard.number, offset, size, mask(crc)))
        return Reservation(self.path, lambda content, position: shard.write_at(content, offset + position))

    def place(self, name: str, dtype: Any, shape: tuple[int, ...]) -> Part:
        self.reserve(name, dtype, shape, 0)
        entry = self._entries[_key(name)]
        if entry.size:
            self._placed.add(name)
        return self._shards[entry.shard].part(entry.offset, entry.size)

    def placed(self, name: str, written: Written) -> None:
        self._entries[_key(name)] = replace(self._entries[_key(name)], crc=mask(written.crc))
        self._placed.discard(name)

    def commit(self) -> None:
        if self._index is None:
            raise CheckpointError(f"{self.path}: this writer has ended; open a new one to write again")
        try:
            check_written(self.path, self._placed)
            self._commit(self._index)
        finally:
            self.abort()

    def abort(self) -> None:
        for shard in self._shards.values():
            shard.discard()
        self._shards = {}
        if self._index is not None:
            self._index.discard()
            self._index = None

    def _commit(self, index: PartialFile) -> None:
        if 0 not in self._shards:
            self._shards[0] = _Shard(self.path, 0, self._is_durable)
        replaced = [
            path for path in glob.glob(glob.escape(self.path) + ".data-*") if bundle_format.parse_data_path(path)
        ]
        num_shards = _free_shard_count(self.path, max(self._shards) + 1)
        placed: list[str] = []
        try:
            for number, shard in self._shards.items():
                path = bundle_format.data_path(self.path, number, num_shards)
                placed.append(path)  # first: it may fail after it has its name
                shard.commit(path)
            pairs = [(bundle_format.HEADER_KEY, bundle_format.encode_header(BundleHeader(num_shards)))]
            pairs += [(key, bundle_format.encode_entry(entry)) for key, entry in sorted(self._entries.items())]
            with reporting(self.path), open(index.fd, "wb", closefd=False) as file:
                file.write(write_table(pairs))
            index.commit(is_durable=self._is_durable)
        except BaseException:
            if not index.is_placed:
                for path in placed:
                    files.remove_if_possible(path)
            raise
        with reporting(self.path):
            for path in replaced:
                os.unlink(path)
            if self._is_durable:
                files.sync_folder(os.path.dirname(self.path))

    def _shard(self, name: str, num_bytes: int) -> _Shard:
        if self._index is None:
            raise CheckpointError(f"{self.path}: this writer has ended; open a new one to write again")
        if not name or "\0" in name:
            raise ValueError(f"a tensor name must not be empty or contain a NUL: {name!r}")
        if _key(name) in self._entries:
            raise ValueError(f"{self.path}: tensor {name!r} is added twice")
        number = self._shard_of(name, num_bytes)
        if not 0 <= number < _MAX_SHARDS:
            raise ValueError(f"{name}: shard {number} is outside 0 to {_MAX_SHARDS - 1}")
        if number not in self._shards:
            self._shards[number] = _Shard(self.path, number, self._is_durable)
        return self._shards[number]

    def _register(self, name: str, entry: BundleEntry) -> None:
        self._entries[_key(name)] = entry


class _Shard:
    """One data file being written. Its final name has the number of shards, which is known only at commit."""

    def __init__(self, prefix: str, number: int, is_durable: bool) -> None:
        self._is_durable = is_durable
        self.number = number
        self.position = 0
        self._partial = PartialFile(f"{prefix}.data-{number:05d}")
        self._behind = WriteBehind(self._partial.fd, is_durable)
        self._file: BinaryIO = open(self._partial.fd, "wb", buffering=WRITE_BYTES, closefd=False)  # noqa: SIM115

    def reserve(self, num_bytes: int, prefix: str) -> None:
        with reporting(prefix):
            writeback.reserve(self._partial.fd, self.position, num_bytes)

    def write(self, piece: np.ndarray[Any, np.dtype[np.uint8]], prefix: str) -> None:
        with reporting(prefix):
            if piece.size < WRITE_BYTES:
                self._file.write(piece.data)
                self._behind.wrote(piece.size)
            else:
                self._behind.write_at(piece.data, self.position)
                self._file.seek(self.position + piece.size)
        self.position += piece.size

    def leave_hole(self, num_bytes: int, prefix: str) -> None:
        """Advance over zeros. The file reads as zeros there and takes no disk space."""
        with reporting(prefix):
            leave_hole(self._partial.fd, self.position, num_bytes)
        self.skip(num_bytes, prefix)

    def skip(self, num_bytes: int, prefix: str) -> None:
        """Leave space for bytes that `write_at` will write."""
        self.position += num_bytes
        with reporting(prefix):
            self._file.seek(self.position)

    def write_at(self, content: memoryview, offset: int) -> None:
        self._behind.write_at(content, offset)

    def part(self, offset: int, num_bytes: int) -> Part:
        """Return a part of the file for another process."""
        return Part(self._partial.path, num_bytes, offset, os.fstat(self._partial.fd).st_ino)

    def commit(self, path: str) -> None:
        with reporting(path):
            self._file.close()
            self._behind.finish()
        self._partial.commit(path, self._is_durable)

    def discard(self) -> None:
        self._behind.stop()
        self._partial.discard()


def _layout(name: str, dtype: Any, shape: tuple[int, ...]) -> tuple[np.dtype[Any], int, tuple[int, ...], int]:
    """Return a tensor's type, TensorFlow's number for the type, the shape, and the size [B]."""
    dtype = np.dtype(dtype)
    if is_string(dtype):
        raise ValueError(f"{name}: strings cannot be added in chunks; use add")
    shape = tuple(int(dim) for dim in shape)
    return dtype, number_of(dtype), shape, bundle_format.num_elements(shape) * dtype.itemsize


def _pieces(chunks: Iterable[BytesLike]) -> Iterator[np.ndarray[Any, np.dtype[np.uint8]]]:
    for chunk in chunks:
        view = flat_view(chunk)
        for start in range(0, view.size, _PIECE_BYTES):
            yield view[start : start + _PIECE_BYTES]


def _free_shard_count(prefix: str, num_shards: int) -> int:
    """Return a shard count for which the prefix has no data file yet.

    The files of a replaced checkpoint must exist until the new index does, so the new files need other names. The shard
    count is the part of a name that can change: readers take it from the index.
    """
    while glob.glob(f"{glob.escape(prefix)}.data-?????-of-{num_shards:05d}"):
        num_shards += 1
    if num_shards > _MAX_SHARDS:
        raise CheckpointError(f"{prefix}: {num_shards} data files are too many; use fewer, larger shards")
    return num_shards


def _key(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")
