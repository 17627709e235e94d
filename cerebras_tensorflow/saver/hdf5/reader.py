"""Reading our own HDF5 checkpoints through the index at their end; one file or shards."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from cerebras_tensorflow.errors import CheckpointError, CorruptCheckpointError
from cerebras_tensorflow.saver.bundle import string_tensor
from cerebras_tensorflow.saver.files import extents
from cerebras_tensorflow.saver.files.checksum import crc32c
from cerebras_tensorflow.saver.hdf5 import blocks as h5_blocks
from cerebras_tensorflow.saver.hdf5 import format as h5_format
from cerebras_tensorflow.saver.hdf5 import index as h5_index
from cerebras_tensorflow.saver.hdf5.index import NOT_CONTIGUOUS, H5Index, H5Record
from cerebras_tensorflow.saver.hdf5.isolated import IsolatedH5
from cerebras_tensorflow.saver.interface import (
    BytesLike,
    StoredExtent,
    TensorEntry,
    TensorReader,
    flat_view,
    holds_strings,
    missing_tensor,
    row_range,
    target_view,
)


def read_index(path: str) -> H5Index | None:
    """Return the index of an HDF5 file, or None if it has none (another program wrote it).

    Raises:
        CheckpointError: If the file cannot be opened.
        CorruptCheckpointError: If its index is damaged.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as exc:
        raise CheckpointError(f"{path}: cannot be opened: {exc.strerror}. Check the path.") from exc
    try:
        return h5_index.read(fd)
    except (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError, MemoryError) as exc:
        raise CorruptCheckpointError(f"{path}: damaged: {exc}. Use another checkpoint.") from exc
    finally:
        os.close(fd)


class H5Reader(TensorReader):
    """The tensors of one of our HDF5 checkpoints.

    The class has more than 20 methods: 12 implement TensorReader, and the others read one file and check its content.

    Args:
        path: The file; for a sharded checkpoint, the file with the index.
        index: Its index, from `read_index`.
    """

    def __init__(self, path: str | os.PathLike[str], index: H5Index) -> None:
        self.path = os.fspath(path)
        self.index = index
        self._fds: dict[int, int] = {}
        self._files: dict[int, IsolatedH5] = {}
        self._closed = False

    def names(self) -> list[str]:
        return sorted(self.index.records)

    def __contains__(self, name: object) -> bool:
        return name in self.index.records

    def entry(self, name: str) -> TensorEntry:
        return self.record(name).entry()

    def record(self, name: str) -> H5Record:
        """Return the index record of a tensor.

        Raises:
            KeyError: If there is no such tensor; names the nearest.
        """
        record = self.index.records.get(name)
        if record is None:
            raise missing_tensor(self, name)
        return record

    def extent(self, name: str) -> StoredExtent | None:
        record = self.record(name)
        if record.type_name == h5_format.STRING_TYPE or record.offset == NOT_CONTIGUOUS:
            return None
        self._check_end(name, record)
        return StoredExtent(self._shard_path(record.shard), record.offset, record.crc)

    def read(self, name: str) -> np.ndarray[Any, Any]:
        record = self.record(name)
        if record.type_name == h5_format.STRING_TYPE:
            return self._read_strings(name, record)
        entry = record.entry()
        self._check_end(name, record)
        array = np.empty(entry.shape, entry.dtype)
        self.read_into(name, array)
        return array

    def read_into(self, name: str, buffer: BytesLike) -> None:
        record = self.record(name)
        self._fill(name, record, target_view(self, name, record.entry(), buffer))

    def read_slice(self, name: str, start: int, stop: int) -> np.ndarray[Any, Any]:
        record = self.record(name)
        entry = record.entry()
        start, stop = row_range(self, name, entry.shape, start, stop)
        if record.type_name == h5_format.STRING_TYPE:
            return self._read_strings(name, record)[start:stop]
        if record.offset == NOT_CONTIGUOUS:
            self._check_dataset(name, record)
            rows = np.empty((stop - start, *entry.shape[1:]), entry.dtype)
            whole = ((0, dim) for dim in entry.shape[1:])
            self._read_compressed(name, record, flat_view(rows), ((start, stop), *whole))
            return rows
        self._check_end(name, record)
        rows = np.empty((stop - start, *entry.shape[1:]), entry.dtype)
        row_bytes = h5_format.num_elements(entry.shape[1:]) * entry.dtype.itemsize
        try:
            extents.fill(self._fd(record.shard), record.offset + start * row_bytes, rows.reshape(-1).view(np.uint8))
        except EOFError as exc:
            raise self._corrupt(name, record, str(exc)) from exc
        return rows

    def chunks(self, name: str) -> Iterator[BytesLike]:
        record = self.record(name)
        if record.type_name == h5_format.STRING_TYPE:
            raise holds_strings(self, name)
        if record.offset == NOT_CONTIGUOUS:
            yield from self._compressed_chunks(name, record)
            return
        try:
            crc = yield from extents.stream(self._fd(record.shard), record.offset, record.num_bytes)
        except EOFError as exc:
            raise self._corrupt(name, record, str(exc)) from exc
        self._check_crc(name, record, crc)

    def verify(self) -> int:
        self.check_complete()
        num_bytes = 0
        for name, record in self.index.records.items():
            if record.offset == NOT_CONTIGUOUS:
                for _ in self._compressed_chunks(name, record):
                    pass
            else:
                try:
                    crc = extents.checksum(self._fd(record.shard), record.offset, record.num_bytes)
                except EOFError as exc:
                    raise self._corrupt(name, record, str(exc)) from exc
                self._check_crc(name, record, crc)
            num_bytes += record.num_bytes
        self._verify_rest(self.path, self.index)
        for shard, shard_name in enumerate(self.index.shards):
            mine = {n: r for n, r in self.index.records.items() if r.shard == shard}
            if not mine:
                continue
            path = self._shard_path(shard)
            index = read_index(path)
            if index is None:
                raise CorruptCheckpointError(f"{path}: its index is missing: truncated or changed by another program")
            if {n: (r.offset, r.crc) for n, r in index.records.items()} != {
                n: (r.offset, r.crc) for n, r in mine.items()
            }:
                raise CorruptCheckpointError(
                    f"{path}: {shard_name} does not belong to this index. Restore the right file."
                )
            self._verify_rest(path, index)
        return num_bytes

    def check_places(self) -> None:
        self.check_complete()

    def check_complete(self) -> None:
        by_shard: dict[int, list[H5Record]] = {}
        for name, record in self.index.records.items():
            self._check_end(name, record)
            by_shard.setdefault(record.shard, []).append(record)
        for shard, records in by_shard.items():
            size = os.fstat(self._fd(shard)).st_size
            num_bytes = sum(record.num_bytes for record in records)
            if num_bytes > h5_index.most_bytes(size) or h5_index.plain_bytes(records) > size:
                raise CorruptCheckpointError(
                    f"{self._shard_path(shard)}: its tensors declare {num_bytes} bytes in a file of {size}: damaged "
                    "or hostile. Use another checkpoint."
                )

    def close(self) -> None:
        self._closed = True
        for file in self._files.values():
            file.close()
        for fd in self._fds.values():
            os.close(fd)
        self._files, self._fds = {}, {}

    def _verify_rest(self, path: str, index: H5Index) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if h5_index.rest_checksum(fd, index.records if not index.shards else {}, index.end) != index.rest_crc:
                raise CorruptCheckpointError(
                    f"{path}: the bytes outside the tensors (HDF5's own records) fail their checksum: damaged, or "
                    "changed by another program. Use another checkpoint."
                )
        except ValueError as exc:
            raise CorruptCheckpointError(f"{path}: damaged: {exc}. Use another checkpoint.") from exc
        finally:
            os.close(fd)

    def _fill(self, name: str, record: H5Record, target: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        if record.offset == NOT_CONTIGUOUS:
            self._fill_compressed(name, record, target)
            return
        try:
            crc = extents.fill_checked(self._fd(record.shard), record.offset, target)
        except EOFError as exc:
            raise self._corrupt(name, record, str(exc)) from exc
        self._check_crc(name, record, crc)

    def _fill_compressed(self, name: str, record: H5Record, target: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        self._check_dataset(name, record)
        self._read_compressed(name, record, target, None)
        self._check_crc(name, record, crc32c(target))

    def _compressed_chunks(self, name: str, record: H5Record) -> Iterator[BytesLike]:
        shape, chunks = self._check_dataset(name, record)
        itemsize = h5_format.stored_dtype(record.type_name).itemsize
        crc = 0
        for block in h5_blocks.blocks(shape, chunks, itemsize):
            bounds = tuple((part.start, part.stop) for part in block)
            piece = np.empty(math.prod(stop - start for start, stop in bounds) * itemsize, np.uint8)
            self._read_compressed(name, record, piece, bounds)
            crc = crc32c(piece, crc)
            yield piece
        self._check_crc(name, record, crc)

    def _check_dataset(self, name: str, record: H5Record) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
        """Return the shape and the chunks of a compressed tensor's dataset; raise an error if it does not fit."""
        try:
            shape, dtype, chunks = self._isolated(record.shard).ask("describe", link=h5_format.quote(name))
        except OSError as exc:
            raise self._corrupt(name, record, f"HDF5 cannot open it: {exc}") from exc
        stored = h5_format.stored_dtype(record.type_name)
        if h5_format.num_elements(shape) * stored.itemsize != record.num_bytes or dtype != stored.str:
            raise self._corrupt(name, record, f"HDF5 has {dtype} {tuple(shape)}, which does not fit the index")
        return tuple(shape), None if chunks is None else tuple(chunks)

    def _read_compressed(
        self,
        name: str,
        record: H5Record,
        target: np.ndarray[Any, np.dtype[np.uint8]],
        bounds: tuple[tuple[int, int], ...] | None,
    ) -> None:
        """Fill memory with a compressed tensor's elements, or with those between bounds [start, stop) of each dim."""
        if not target.size:
            return
        stored = h5_format.stored_dtype(record.type_name).str
        try:
            self._isolated(record.shard).read_into(
                target.data, "read", link=h5_format.quote(name), stored=stored, selection=bounds
            )
        except OSError as exc:
            raise self._corrupt(name, record, str(exc)) from exc

    def _read_strings(self, name: str, record: H5Record) -> np.ndarray[Any, Any]:
        self._check_end(name, record)
        stored = np.empty(record.num_bytes, np.uint8)
        self._fill(name, record, stored)
        try:
            elements, _ = string_tensor.decode(stored.tobytes(), h5_format.num_elements(record.shape))
        except ValueError as exc:
            raise self._corrupt(name, record, str(exc)) from exc
        return string_tensor.to_array(elements, record.shape)

    def _check_crc(self, name: str, record: H5Record, crc: int) -> None:
        if crc != record.crc:
            raise self._corrupt(name, record, f"its checksum is {crc:#010x}, the index says {record.crc:#010x}")

    def _check_end(self, name: str, record: H5Record) -> None:
        size = os.fstat(self._fd(record.shard)).st_size
        if record.offset + record.num_bytes > size and record.offset != NOT_CONTIGUOUS:
            raise self._corrupt(name, record, f"it ends at byte {record.offset + record.num_bytes}, the file at {size}")

    def _corrupt(self, name: str, record: H5Record, problem: str) -> CorruptCheckpointError:
        path = self._shard_path(record.shard)
        return CorruptCheckpointError(f"{path}: tensor {name!r} is damaged: {problem}. Use another checkpoint.")

    def _isolated(self, shard: int) -> IsolatedH5:
        """Return a file whose compressed tensors another process reads with libhdf5."""
        if shard not in self._files:
            self._files[shard] = IsolatedH5(self._shard_path(shard), self._fd(shard))
        return self._files[shard]

    def _shard_path(self, shard: int) -> str:
        if not self.index.shards:
            return self.path
        return os.path.join(os.path.dirname(self.path), self.index.shards[shard])

    def _fd(self, shard: int) -> int:
        if self._closed:
            raise CheckpointError(f"{self.path}: this reader is closed")
        fd = self._fds.get(shard)
        if fd is None:
            path = self._shard_path(shard)
            try:
                fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as exc:
                raise CorruptCheckpointError(
                    f"{path}: file {shard + 1} of {max(len(self.index.shards), 1)} of this checkpoint: {exc.strerror}. "
                    "Restore it beside the index, or use another checkpoint."
                ) from exc
            self._fds[shard] = fd
        return fd
