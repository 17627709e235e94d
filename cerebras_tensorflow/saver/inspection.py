"""Listings of a checkpoint and differences between two, as lines of text."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from cerebras_tensorflow.saver.hdf5.foreign import ForeignH5Reader
from cerebras_tensorflow.saver.hdf5.reader import H5Reader
from cerebras_tensorflow.saver.interface import BytesLike, TensorEntry, TensorReader, flat_view
from cerebras_tensorflow.saver.names import files_of
from cerebras_tensorflow.saver.objects.reader import ObjectReader
from cerebras_tensorflow.saver.safetensors_file import SafetensorsReader
from cerebras_tensorflow.text import one_line
from cerebras_tensorflow.units import format_bytes

# Width limit of the name column, so that one long name does not widen all lines.
_MAX_WIDTH = 120


def describe(reader: TensorReader) -> Iterator[str]:
    """Yield the lines of a listing: kind, programs that read it, files, tensors, and objects that are not tensors."""
    names = reader.names()
    total = sum(reader.entry(name).num_bytes for name in names)
    yield f"{one_line(reader.path)}: {_kind(reader)}, {len(names)} tensors, {format_bytes(total)}"
    yield f"read by: {', '.join(accepting_readers(reader))}"
    if isinstance(reader, ObjectReader):
        for name, size in zip(reader.manifest.objects, reader.manifest.sizes, strict=True):
            yield f"object {name}: {format_bytes(size)}"
    for file in _files(reader):
        yield f"file {one_line(os.path.basename(file))}: {format_bytes(os.path.getsize(file))}"
    width = min(max((len(one_line(name)) for name in names), default=0), _MAX_WIDTH)
    for name in names:
        entry = reader.entry(name)
        shard = f"  shard {reader.record(name).shard}" if isinstance(reader, H5Reader) and reader.index.shards else ""
        yield f"{one_line(name):{width}}  {_type(entry):12} {_shape(entry):20} {format_bytes(entry.num_bytes)}{shard}"
    for name, reason in getattr(reader, "skipped", {}).items():
        yield f"{one_line(name)}: not a tensor: {one_line(reason)}"


def layout(reader: TensorReader, shard_of: Callable[[str, int], int]) -> Iterator[str]:
    """Yield a line for each shard into which `shard_of` splits a checkpoint: its number, size and tensors."""
    shards: dict[int, list[tuple[str, int]]] = {}
    for name in reader.names():
        num_bytes = reader.entry(name).num_bytes
        shards.setdefault(shard_of(name, num_bytes), []).append((name, num_bytes))
    for number, members in sorted(shards.items()):
        size = format_bytes(sum(num_bytes for _, num_bytes in members))
        count = f"{len(members)} tensor{'s' if len(members) > 1 else ''}"
        rest = f" ... {one_line(members[-1][0])}" if len(members) > 1 else ""
        yield f"shard {number}: {size}, {count}: {one_line(members[0][0])}{rest}"


def accepting_readers(reader: TensorReader) -> list[str]:
    """Return the programs that read a file of this kind.

    Source:
        HDF5 generations: tested with the published wheels 2.6.0 (see FORMAT.md).
    """
    if isinstance(reader, H5Reader):
        if reader.index.shards:
            return ["this library", "each shard: published H5Saver.load and storage reader, h5py"]
        return ["this library", "published H5Saver.load", "published storage reader (StorageReader)", "h5py"]
    if isinstance(reader, ForeignH5Reader):
        published = {
            "cerebras storage": ["published cstorch.load, if its root has a __spec__", "published storage reader"],
            "cerebras H5Saver": ["published H5Saver.load"],
        }
        known = [
            program
            for kind, programs in published.items()
            if reader.generation.startswith(kind)
            for program in programs
        ]
        return ["this library", *known, "h5py"]
    if isinstance(reader, SafetensorsReader):
        return ["this library", "safetensors"]
    if isinstance(reader, ObjectReader):
        return ["this library"]
    return ["this library", "tf.train.load_checkpoint", "tf.compat.v1.train.Saver"]


def differences(first: TensorReader, second: TensorReader) -> Iterator[str]:
    """Yield a line for each tensor that only one has, or that differs in type, shape or value."""
    left, right = set(first.names()), set(second.names())
    for name in sorted(left - right):
        yield f"only in {one_line(first.path)}: {one_line(name)}"
    for name in sorted(right - left):
        yield f"only in {one_line(second.path)}: {one_line(name)}"
    for name in sorted(left & right):
        one, other = first.entry(name), second.entry(name)
        if (one.dtype, one.shape) != (other.dtype, other.shape):
            yield f"{one_line(name)}: {_type(one)} {_shape(one)} against {_type(other)} {_shape(other)}"
        elif one.dtype.kind == "O":
            if first.read(name).tolist() != second.read(name).tolist():
                yield f"{one_line(name)}: the strings differ"
        elif (text := _value_difference(one, first.chunks(name), second.chunks(name))) is not None:
            yield f"{one_line(name)}: {text}"


def aligned(
    first: Iterator[BytesLike], second: Iterator[BytesLike], itemsize: int = 1
) -> Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """Yield pairs of pieces of the same whole elements; if one stream ends early, a last pair of unequal sizes."""
    left = right = np.empty(0, np.uint8)
    while True:
        while left.size < itemsize and (piece := next(first, None)) is not None:
            left = np.concatenate([left, flat_view(piece)]) if left.size else flat_view(piece)
        while right.size < itemsize and (piece := next(second, None)) is not None:
            right = np.concatenate([right, flat_view(piece)]) if right.size else flat_view(piece)
        size = min(left.size, right.size) // itemsize * itemsize
        if not size:
            if left.size or right.size:
                yield left, right
            return
        yield left[:size], right[:size]
        left, right = left[size:].copy(), right[size:].copy()


def _value_difference(entry: TensorEntry, first: Iterator[BytesLike], second: Iterator[BytesLike]) -> str | None:
    count, largest = 0, 0.0
    is_number = entry.dtype.kind not in "b"
    for left, right in aligned(first, second, entry.dtype.itemsize):
        one, other = left.view(entry.dtype), right.view(entry.dtype)
        # Compare bits: NaN equals itself, and 0 differs from -0.
        unequal = (left.reshape(-1, entry.dtype.itemsize) != right.reshape(-1, entry.dtype.itemsize)).any(axis=1)
        if unequal.any():
            count += int(unequal.sum())
            if is_number:
                wide = np.complex128 if entry.dtype.kind == "c" else np.float64
                with np.errstate(invalid="ignore"):
                    distance = np.abs(one[unequal].astype(wide) - other[unequal].astype(wide))
                largest = max(largest, float(np.nan_to_num(distance, nan=np.inf).max()))
    if not count:
        return None
    total = 1
    for dim in entry.shape:
        total *= dim
    return f"{count} of {total} elements differ" + (f", at most by {largest:.6g}" if is_number else "")


def _kind(reader: TensorReader) -> str:
    if isinstance(reader, ForeignH5Reader):
        return f"HDF5 by another writer ({reader.generation})"
    if isinstance(reader, H5Reader):
        return f"Cerebras HDF5 in {len(reader.index.shards)} shards" if reader.index.shards else "Cerebras HDF5"
    if isinstance(reader, ObjectReader):
        return f"{len(reader.manifest.objects)} data objects"
    return "safetensors" if isinstance(reader, SafetensorsReader) else "TensorFlow V2"


def _files(reader: TensorReader) -> list[str]:
    if isinstance(reader, H5Reader):
        folder = os.path.dirname(reader.path)
        shards = [os.path.join(folder, shard) for shard in reader.index.shards]
        return [reader.path, *(shard for shard in shards if os.path.exists(shard))]
    return [] if isinstance(reader, ObjectReader) else files_of(reader.path)


def _type(entry: TensorEntry) -> str:
    return "string" if entry.dtype.kind == "O" else entry.dtype.name


def _shape(entry: TensorEntry) -> str:
    return "[" + ", ".join(str(dim) for dim in entry.shape) + "]"
