"""The records of a tensor bundle (TensorFlow V2 checkpoint) and the names of its files. No file is opened here.

A bundle is the index `PREFIX.index` and the data files `PREFIX.data-0000k-of-0000n` with the raw values. The index is a
sorted table of tensor name -> BundleEntry, with a header under the empty name.
Source: tensorflow/core/protobuf/tensor_bundle.proto.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from cerebras_tensorflow.saver.bundle import wire
from cerebras_tensorflow.saver.bundle.ordered_code import Extent
from cerebras_tensorflow.saver.interface import check_shape

HEADER_KEY = b""
INDEX_SUFFIX = ".index"
_PRODUCER = 1
_DATA_NAME = re.compile(r"(?P<prefix>.*)\.data-(?P<shard>\d{5})-of-(?P<num_shards>\d{5})", re.DOTALL)
_WHOLE_DIM = -1
# Limit of comparisons between pieces of a tensor; a regular grid of 300 x 300 pieces needs fewer.
_MAX_COMPARISONS = 30_000_000


@dataclass(frozen=True)
class BundleHeader:
    """The properties of a whole bundle."""

    num_shards: int
    is_big_endian: bool = False


@dataclass(frozen=True)
class BundleEntry:
    """The place of one tensor. A partitioned tensor has `slices`; each slice has its own entry, with its values.

    Attributes:
        type_number: Element type, numbered as in types.proto.
        crc: Masked CRC-32C of the stored bytes.
    """

    type_number: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    crc: int
    slices: tuple[tuple[Extent, ...], ...] = ()


def index_path(prefix: str) -> str:
    """Return the path of a bundle's index file."""
    return prefix + INDEX_SUFFIX


def data_path(prefix: str, shard: int, num_shards: int) -> str:
    """Return the path of one of a bundle's data files."""
    return f"{prefix}.data-{shard:05d}-of-{num_shards:05d}"


def parse_data_path(path: str) -> tuple[str, int, int] | None:
    """Return (prefix, shard, number of shards) of a data file's path, or None for any other path."""
    match = _DATA_NAME.fullmatch(path)
    return (match["prefix"], int(match["shard"]), int(match["num_shards"])) if match else None


def encode_header(header: BundleHeader) -> bytes:
    """Return the BundleHeaderProto of a little-endian bundle."""
    version = wire.varint_field(1, _PRODUCER)
    return wire.varint_field(1, header.num_shards) + wire.bytes_field(3, version)


def decode_header(data: bytes) -> BundleHeader:
    """Return the header of a BundleHeaderProto.

    Raises:
        ValueError: If it is malformed.
    """
    num_shards = endianness = 0
    for number, value in wire.fields(data):
        if number == 1:
            num_shards = _int(value)
        elif number == 2:
            endianness = _int(value)
    return BundleHeader(num_shards, endianness != 0)


def encode_entry(entry: BundleEntry) -> bytes:
    """Return the BundleEntryProto of an entry without slices."""
    dims = b"".join(wire.bytes_field(2, wire.varint_field(1, dim)) for dim in entry.shape)
    return (
        wire.varint_field(1, entry.type_number)
        + wire.bytes_field(2, dims)
        + wire.varint_field(3, entry.shard)
        + wire.varint_field(4, entry.offset)
        + wire.varint_field(5, entry.size)
        + wire.fixed32_field(6, entry.crc)
    )


def decode_entry(data: bytes) -> BundleEntry:
    """Return the entry of a BundleEntryProto.

    Raises:
        ValueError: If it is malformed, or a dim, an offset or a size is negative.
    """
    type_number = shard = offset = size = crc = 0
    shape: tuple[int, ...] = ()
    slices: list[tuple[Extent, ...]] = []
    for number, value in wire.fields(data):
        match number:
            case 1:
                type_number = _int(value)
            case 2:
                shape = _decode_shape(_bytes(value))
            case 3:
                shard = _int(value)
            case 4:
                offset = wire.as_signed(_int(value))
            case 5:
                size = wire.as_signed(_int(value))
            case 6:
                crc = _int(value)
            case 7:
                slices.append(_decode_slice(_bytes(value)))
    check_shape(shape)
    if offset < 0 or size < 0:
        raise ValueError(f"negative offset {offset} or size {size}")
    return BundleEntry(type_number, shape, shard, offset, size, crc, tuple(slices))


def _decode_shape(data: bytes) -> tuple[int, ...]:
    dims = []
    for number, value in wire.fields(data):
        if number == 2:
            sizes = [_int(size) for field, size in wire.fields(_bytes(value)) if field == 1]
            dims.append(wire.as_signed(sizes[-1]) if sizes else 0)
        elif number == 3 and value:
            raise ValueError("the shape is of unknown rank")
    return tuple(dims)


def _decode_slice(data: bytes) -> tuple[Extent, ...]:
    return tuple(_decode_extent(_bytes(value)) for number, value in wire.fields(data) if number == 1)


def _decode_extent(data: bytes) -> Extent:
    start, length = 0, _WHOLE_DIM
    for number, value in wire.fields(data):
        if number == 1:
            start = wire.as_signed(_int(value))
        elif number == 2:
            length = wire.as_signed(_int(value))
    return start, length


def resolve(extents: tuple[Extent, ...], shape: tuple[int, ...]) -> tuple[slice, ...]:
    """Return the index of a piece in the whole tensor.

    Raises:
        ValueError: If the piece is not inside the tensor.
    """
    if len(extents) != len(shape):
        raise ValueError(f"a piece of rank {len(extents)} in a tensor of shape {shape}")
    index = []
    for (start, length), dim in zip(extents, shape, strict=True):
        stop = dim if length == _WHOLE_DIM else start + length
        if not 0 <= start <= stop <= dim:
            raise ValueError(f"a piece from {start} to {stop} in a dim of {dim}")
        index.append(slice(start, stop))
    return tuple(index)


def tiles(slices: Sequence[tuple[Extent, ...]], shape: tuple[int, ...]) -> list[tuple[slice, ...]]:
    """Return the index of each piece in the whole tensor, in the given order.

    Raises:
        ValueError: If a piece is not inside the tensor, or two pieces overlap. They may leave gaps: TensorFlow saves
            some optimizer slots of partitioned variables so.
    """
    indexes = [resolve(piece, shape) for piece in slices]
    sizes = [math.prod(part.stop - part.start for part in index) for index in indexes]
    if sum(sizes) > num_elements(shape):
        raise ValueError(f"its pieces hold {sum(sizes)} elements, the shape {shape} has {num_elements(shape)}")
    if _overlap([index for index, size in zip(indexes, sizes, strict=True) if size]):
        raise ValueError("its pieces overlap")
    return indexes


def common(one: tuple[slice, ...], other: tuple[slice, ...]) -> tuple[slice, ...] | None:
    """Return the part that two regions of a tensor share, or None."""
    shared = [(max(a.start, b.start), min(a.stop, b.stop)) for a, b in zip(one, other, strict=True)]
    if any(start >= stop for start, stop in shared):
        return None
    return tuple(slice(start, stop) for start, stop in shared)


def within(part: tuple[slice, ...], region: tuple[slice, ...]) -> tuple[slice, ...]:
    """Return the index of a part in an array that holds only a region of the tensor."""
    return tuple(slice(a.start - b.start, a.stop - b.start) for a, b in zip(part, region, strict=True))


def _overlap(boxes: list[tuple[slice, ...]]) -> bool:
    """Whether any two boxes share an element; also True if there are too many boxes to find out."""
    if not boxes or not boxes[0]:
        return len(boxes) > 1
    # Sweep along the axis with the most cuts: if a tensor is cut along one axis only, no two boxes are ever compared.
    axis = max(range(len(boxes[0])), key=lambda axis: len({box[axis].start for box in boxes}))
    comparisons = 0
    active: list[tuple[slice, ...]] = []
    for box in sorted(boxes, key=lambda box: box[axis].start):
        active = [other for other in active if other[axis].stop > box[axis].start]
        comparisons += len(active) + 1
        if comparisons > _MAX_COMPARISONS or any(_meet(box, other) for other in active):
            return True
        active.append(box)
    return False


def _meet(one: tuple[slice, ...], other: tuple[slice, ...]) -> bool:
    return all(a.start < b.stop and b.start < a.stop for a, b in zip(one, other, strict=True))


def num_elements(shape: tuple[int, ...]) -> int:
    """Return the product of the dims; 1 for a scalar."""
    return math.prod(shape)


def _int(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise ValueError("a number field holds bytes")
    return value


def _bytes(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a message field holds a number")
    return value
