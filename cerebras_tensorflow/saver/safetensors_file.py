"""Safetensors files: JSON of names, types and offsets, then the raw values. Reading never runs code."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from typing import Any

import ml_dtypes
import numpy as np

from cerebras_tensorflow.errors import CheckpointError, CorruptCheckpointError
from cerebras_tensorflow.locations import local_path
from cerebras_tensorflow.saver.files import extents
from cerebras_tensorflow.saver.files.atomic import PartialFile, reporting, write_all
from cerebras_tensorflow.saver.interface import (
    BytesLike,
    TensorEntry,
    TensorReader,
    TensorWriter,
    as_bytes,
    check_shape,
    flat_view,
    missing_tensor,
    row_range,
    target_view,
)

SAFETENSORS_SUFFIX = ".safetensors"
_MAX_HEADER_BYTES = 100_000_000
_METADATA_KEY = "__metadata__"

_DTYPES: dict[str, Any] = {
    "BOOL": np.bool_,
    "U8": np.uint8,
    "I8": np.int8,
    "U16": np.uint16,
    "I16": np.int16,
    "U32": np.uint32,
    "I32": np.int32,
    "U64": np.uint64,
    "I64": np.int64,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F32": np.float32,
    "F64": np.float64,
    "C64": np.complex64,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
}
_NAMES = {np.dtype(dtype): name for name, dtype in _DTYPES.items()}


class SafetensorsReader(TensorReader):
    """The tensors of a safetensors file. The format has no checksums, so only its structure is verified.

    Raises:
        CheckpointError: If the file cannot be opened.
        CorruptCheckpointError: If its header does not fit the file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        try:
            self._fd = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as exc:
            raise CheckpointError(f"{self.path}: cannot be opened: {exc.strerror}. Check the path.") from exc
        try:
            self._start, self._items = _read_header(self._fd)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
            self.close()
            raise CorruptCheckpointError(f"{self.path}: not a safetensors file or damaged: {exc}") from exc

    def names(self) -> list[str]:
        return sorted(self._items)

    def __contains__(self, name: object) -> bool:
        return name in self._items

    def entry(self, name: str) -> TensorEntry:
        return self._item(name)[0]

    def read(self, name: str) -> np.ndarray[Any, Any]:
        entry = self.entry(name)
        array = np.empty(entry.shape, entry.dtype)
        self.read_into(name, array)
        return array

    def read_into(self, name: str, buffer: BytesLike) -> None:
        entry, offset = self._item(name)
        self._fill(name, offset, target_view(self, name, entry, buffer))

    def read_slice(self, name: str, start: int, stop: int) -> np.ndarray[Any, Any]:
        entry, offset = self._item(name)
        start, stop = row_range(self, name, entry.shape, start, stop)
        rows = np.empty((stop - start, *entry.shape[1:]), entry.dtype)
        row_bytes = entry.num_bytes // max(entry.shape[0], 1)
        self._fill(name, offset + start * row_bytes, rows.reshape(-1).view(np.uint8))
        return rows

    def chunks(self, name: str) -> Iterator[BytesLike]:
        entry, offset = self._item(name)
        scratch = np.empty(min(extents.STREAM_BYTES, entry.num_bytes), np.uint8)
        for done in range(0, entry.num_bytes, extents.STREAM_BYTES):
            piece = scratch[: entry.num_bytes - done]
            self._fill(name, offset + done, piece)
            yield piece

    def verify(self) -> int:
        self.check_complete()
        return sum(entry.num_bytes for entry, _ in self._items.values())

    def check_complete(self) -> None:
        # The header was checked against the file's size when it was opened.
        if self._fd < 0:
            raise CheckpointError(f"{self.path}: this reader is closed")

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _item(self, name: str) -> tuple[TensorEntry, int]:
        if name not in self._items:
            raise missing_tensor(self, name)
        return self._items[name]

    def _fill(self, name: str, offset: int, target: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        self.check_complete()
        try:
            extents.fill(self._fd, self._start + offset, target)
        except EOFError as exc:
            raise CorruptCheckpointError(f"{self.path}: tensor {name!r} is truncated: {exc}") from exc


def _read_header(fd: int) -> tuple[int, dict[str, tuple[TensorEntry, int]]]:
    size = os.fstat(fd).st_size
    header_size = int.from_bytes(os.pread(fd, 8, 0), "little")
    if size < 8 or header_size > min(size - 8, _MAX_HEADER_BYTES):
        raise ValueError(f"a header of {header_size} bytes is declared in a file of {size}")
    header = json.loads(os.pread(fd, header_size, 8), object_pairs_hook=_once)
    start = 8 + header_size
    items = {}
    for name, item in header.items():
        if name == _METADATA_KEY:
            continue
        name.encode()  # JSON can escape characters that UTF-8 cannot have
        if item["dtype"] not in _DTYPES:
            raise ValueError(f"tensor {name!r} has the unknown type {str(item['dtype'])[:80]!r}")
        dtype = np.dtype(_DTYPES[item["dtype"]])
        shape = tuple(item["shape"])
        first, last = item["data_offsets"]
        check_shape(shape)
        if type(first) is not int or type(last) is not int:
            raise ValueError(f"tensor {name!r} has offsets that are not integers")
        if not 0 <= first <= last <= size - start:
            raise ValueError(f"tensor {name!r} of shape {shape} is at {first} to {last} of {size - start} bytes")
        entry = TensorEntry(dtype, shape, last - first)
        expected = dtype.itemsize
        for dim in shape:
            expected *= dim
        if expected != entry.num_bytes:
            raise ValueError(f"tensor {name!r} of {item['dtype']} {shape} declares {entry.num_bytes} bytes")
        items[name] = (entry, first)
    position = 0
    for name, (entry, first) in sorted(items.items(), key=lambda item: (item[1][1], item[1][0].num_bytes)):
        if entry.num_bytes and first < position:
            raise ValueError(f"tensor {name!r} overlaps another tensor")
        position = max(position, first + entry.num_bytes)
    return start, items


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object. The format forbids a key twice: readers would differ in which value they take."""
    items = dict(pairs)
    if len(items) != len(pairs):
        raise ValueError("a key is there twice")
    return items


class SafetensorsWriter(TensorWriter):
    """A safetensors file being written. The header comes first in the file, so all tensors are declared up front.

    Args:
        path: Final path.
        entries: All tensors that will be added, in the order of adding.

    Raises:
        ValueError: If the format cannot hold one of the types.
    """

    def __init__(self, path: str | os.PathLike[str], entries: dict[str, TensorEntry]) -> None:
        self.path = os.path.abspath(local_path(path))
        self._entries = entries
        self._left = list(entries)
        header = _header(entries)
        self._partial: PartialFile | None = PartialFile(self.path)
        with reporting(self.path):
            write_all(self._partial.fd, header)

    def add(self, name: str, array: Any) -> None:
        array = np.asarray(array)
        self.add_chunks(name, array.dtype, array.shape, [as_bytes(array)])

    def add_chunks(self, name: str, dtype: Any, shape: tuple[int, ...], chunks: Iterable[BytesLike]) -> None:
        if self._partial is None:
            raise CheckpointError(f"{self.path}: this writer has ended; open a new one to write again")
        if not self._left or self._left[0] != name:
            raise ValueError(f"{name}: expected {self._left[0] if self._left else 'no more tensors'} next")
        entry = self._entries[name]
        if (entry.dtype, entry.shape) != (np.dtype(dtype), tuple(shape)):
            raise ValueError(
                f"{name}: declared as {entry.dtype} {entry.shape}, added as {np.dtype(dtype)} {tuple(shape)}"
            )
        done = 0
        for chunk in chunks:
            view = flat_view(chunk)
            done += view.size
            if done > entry.num_bytes:
                break
            with reporting(self.path):
                write_all(self._partial.fd, view.data)
        if done != entry.num_bytes:
            raise ValueError(f"{name}: the chunks hold {done} bytes or more, {entry.num_bytes} are needed")
        self._left.pop(0)

    def commit(self) -> None:
        if self._partial is None:
            raise CheckpointError(f"{self.path}: this writer has ended; open a new one to write again")
        try:
            if self._left:
                raise ValueError(
                    f"{self.path}: {len(self._left)} declared tensors were not added, first {self._left[0]!r}"
                )
            self._partial.commit()
        finally:
            self.abort()

    def abort(self) -> None:
        if self._partial is not None:
            self._partial.discard()
            self._partial = None


def _header(entries: dict[str, TensorEntry]) -> bytes:
    header: dict[str, Any] = {}
    offset = 0
    for name, entry in entries.items():
        if name == _METADATA_KEY or entry.dtype not in _NAMES:
            known = ", ".join(sorted(str(dtype) for dtype in _NAMES))
            raise ValueError(f"{name}: safetensors cannot hold {entry.dtype}; it can hold {known}")
        header[name] = {
            "dtype": _NAMES[entry.dtype],
            "shape": list(entry.shape),
            "data_offsets": [offset, offset + entry.num_bytes],
        }
        offset += entry.num_bytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    # Pad the header so that the values are aligned.
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
