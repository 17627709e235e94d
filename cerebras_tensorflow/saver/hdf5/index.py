"""The index at the end of our HDF5 files: the position and checksum of each tensor, and a checksum of the rest.

HDF5 readers ignore bytes after the end that the superblock declares, so other programs see a plain HDF5 file. With the
index we read any uncompressed tensor without HDF5, and detect truncation and every flipped bit.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from cerebras_tensorflow.saver.files.checksum import crc32c
from cerebras_tensorflow.saver.hdf5.format import STRING_TYPE, dtype_named, num_elements
from cerebras_tensorflow.saver.interface import TensorEntry, check_shape

_VERSION = 1
_MAGIC = b"\x93CBTFIDX"
# magic, offset and size of the index, CRC of the index, CRC of the file outside tensors and index, CRC of this tail.
_TAIL = struct.Struct("<8sQQIII")
_PIECE_BYTES = 4 << 20
NOT_CONTIGUOUS = -1
# A million tensors take about 100 MB.
_MAX_INDEX_BYTES = 256 << 20
# No filter expands data more than about 1000 times; a file that declares more is an attack on memory.
MAX_EXPANSION = 2000
ALWAYS_ALLOWED_BYTES = 64 << 20


def most_bytes(file_bytes: int) -> int:
    """Return the largest total size of the values, uncompressed, that is accepted for a file of a given size [B]."""
    return max(MAX_EXPANSION * file_bytes, ALWAYS_ALLOWED_BYTES)


@dataclass(frozen=True)
class H5Record:
    """The place of one tensor.

    Attributes:
        type_name: Name of the element type (see format.py).
        offset: Position of the first byte in its file; NOT_CONTIGUOUS if it is compressed, to be read through HDF5.
        num_bytes: Size of the value [B], uncompressed.
        crc: CRC-32C of the value.
        shard: Number of the file, from 0; always 0 if the checkpoint is not sharded.
    """

    type_name: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int
    crc: int
    shard: int = 0

    def entry(self) -> TensorEntry:
        """Return the tensor's entry for readers."""
        return TensorEntry(dtype_named(self.type_name), self.shape, self.num_bytes)


@dataclass(frozen=True)
class H5Index:
    """The index of one file.

    Attributes:
        records: By tensor name.
        shards: Names of the files with the values, in the same folder; empty if this file has them.
        end: Where the HDF5 file ends and the index begins.
        rest_crc: CRC-32C of all bytes before `end` that belong to no tensor.
    """

    records: dict[str, H5Record]
    shards: tuple[str, ...]
    end: int
    rest_crc: int


def encode(index: H5Index) -> bytes:
    """Return the bytes of the index and its tail. Their size does not depend on any checksum."""
    tensors = {name: values_of(record) for name, record in index.records.items()}
    content = {"version": _VERSION, "shards": list(index.shards), "tensors": tensors}
    body = json.dumps(content, separators=(",", ":")).encode()
    head = _TAIL.pack(_MAGIC, index.end, len(body), crc32c(body), index.rest_crc, 0)[:-4]
    return body + head + crc32c(head).to_bytes(4, "little")


def values_of(record: H5Record) -> list[Any]:
    """Return a record as a list for JSON."""
    return [record.type_name, list(record.shape), record.offset, record.num_bytes, f"{record.crc:08x}", record.shard]


def read(fd: int) -> H5Index | None:
    """Return the index of an open file, or None if it does not end with one.

    Raises:
        ValueError: If its index is damaged or does not fit the file.
    """
    size = os.fstat(fd).st_size
    tail = os.pread(fd, _TAIL.size, max(size - _TAIL.size, 0))
    if len(tail) < _TAIL.size or tail[:8] != _MAGIC:
        return None
    _, end, body_size, body_crc, rest_crc, tail_crc = _TAIL.unpack(tail)
    if crc32c(tail[:-4]) != tail_crc:
        raise ValueError("the tail of the index fails its checksum")
    if end + body_size + _TAIL.size != size:
        raise ValueError(f"the index says the file has {end + body_size + _TAIL.size} bytes; it has {size}")
    if body_size > _MAX_INDEX_BYTES:
        raise ValueError(f"the index has {body_size} bytes; the limit is {_MAX_INDEX_BYTES}")
    body = os.pread(fd, body_size, end)
    if crc32c(body) != body_crc:
        raise ValueError("the index fails its checksum")
    with _without_garbage_collection():
        return _parse(body, end, rest_crc)


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Turn off garbage collection: with very many new objects, its repeated scans take longer than making them."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _parse(body: bytes, end: int, rest_crc: int) -> H5Index:
    content = json.loads(body)
    if content.get("version") != _VERSION:
        raise ValueError(f"the index has version {content.get('version')}; this program reads {_VERSION}")
    shards = tuple(content["shards"])
    if any(not isinstance(shard, str) or os.path.basename(shard) != shard or not shard.strip(".") for shard in shards):
        raise ValueError("a shard's name points outside the folder")
    largest = end if not shards else None
    records = {name: record_of(name, values, largest, len(shards)) for name, values in content["tensors"].items()}
    if largest is not None and plain_bytes(records.values()) > largest:
        # If tensors could share bytes, reading a small file could take any amount of time and memory.
        raise ValueError(f"its tensors have {plain_bytes(records.values())} bytes, more than the file: some overlap")
    return H5Index(records, shards, end, rest_crc)


def plain_bytes(records: Iterable[H5Record]) -> int:
    """Return the total size of the uncompressed tensors [B]."""
    return sum(record.num_bytes for record in records if record.offset != NOT_CONTIGUOUS)


def record_of(name: str, values: list[Any], end: int | None, num_shards: int) -> H5Record:
    """Return the record that a list from JSON describes.

    Args:
        name: The tensor.
        values: A list as `values_of` returns it, but from a file of unknown origin.
        end: Where the data of the tensor's file ends; None: unknown.
        num_shards: Number of files.

    Raises:
        ValueError: If the list does not describe a tensor in these files.
    """
    type_name, dims, offset, num_bytes, crc, shard = values
    if not isinstance(type_name, str) or not isinstance(crc, str) or not isinstance(dims, list):
        raise ValueError(f"tensor {name!r} has a bad description: {str(values)[:80]}")
    if type(offset) is not int or type(num_bytes) is not int or type(shard) is not int:
        raise ValueError(f"tensor {name!r} has an offset, size or shard that is not an integer: {str(values)[:80]}")
    record = H5Record(type_name, tuple(dims), offset, num_bytes, int(crc, 16), shard)
    check_shape(record.shape)
    if num_bytes < 0 or offset < NOT_CONTIGUOUS:
        raise ValueError(f"tensor {name!r} has a negative size or offset")
    dtype = dtype_named(type_name)
    if type_name != STRING_TYPE and num_elements(record.shape) * dtype.itemsize != num_bytes:
        raise ValueError(f"tensor {name!r} of {type_name} {record.shape} declares {num_bytes} bytes")
    if end is not None and offset != NOT_CONTIGUOUS and offset + num_bytes > end:
        raise ValueError(f"tensor {name!r} ends at byte {offset + num_bytes}, the data at {end}")
    if end is not None and num_bytes > most_bytes(end):
        raise ValueError(f"tensor {name!r} declares {num_bytes} bytes in a file of {end} bytes")
    if not 0 <= shard < max(num_shards, 1):
        raise ValueError(f"tensor {name!r} is in shard {shard} of {num_shards}")
    return record


def rest_checksum(fd: int, records: dict[str, H5Record], end: int) -> int:
    """Return the CRC-32C of a file's bytes before `end` that are outside its tensors.

    Raises:
        ValueError: If the file is shorter, or tensors overlap.
    """
    extents = sorted((r.offset, r.offset + r.num_bytes) for r in records.values() if r.offset >= 0 and r.num_bytes)
    crc = position = 0
    for start, stop in [*extents, (end, end)]:
        if start < position:
            raise ValueError(f"tensors overlap at byte {start}")
        while position < start:
            piece = os.pread(fd, min(start - position, _PIECE_BYTES), position)
            if not piece:
                raise ValueError(f"the file ends at byte {position}, before byte {end}")
            crc = crc32c(piece, crc)
            position += len(piece)
        position = stop
    return crc
