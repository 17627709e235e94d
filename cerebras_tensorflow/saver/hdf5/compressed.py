"""Compressed tensors: a stream of bytes fills HDF5 chunks in order."""

from __future__ import annotations

import importlib.util
import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from h5py import h5d, h5s, h5t

from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.saver.files.checksum import crc32c
from cerebras_tensorflow.saver.hdf5 import format as h5_format
from cerebras_tensorflow.saver.interface import BytesLike, flat_view

_CHUNK_BYTES = 1 << 20
GZIP_LEVEL = 1


def chunk_shape(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Return a chunk shape of about a megabyte, contiguous in row-major order, so that a stream fills them in order."""
    chunk = [1] * len(shape)
    left = max(_CHUNK_BYTES // itemsize, 1)
    for axis in reversed(range(len(shape))):
        chunk[axis] = min(shape[axis], left)
        if chunk[axis] < shape[axis]:
            break
        left = max(left // shape[axis], 1)
    return tuple(chunk)


def _blocks(shape: tuple[int, ...], chunk_shape: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield (start, count) of the chunks in row-major order; chunks at an edge are clipped to the shape."""
    grid = tuple(-(-dim // size) for dim, size in zip(shape, chunk_shape, strict=True))
    for position in np.ndindex(grid):
        start = tuple(index * size for index, size in zip(position, chunk_shape, strict=True))
        yield start, tuple(min(size, dim - at) for size, dim, at in zip(chunk_shape, shape, start, strict=True))


class Packer:
    """Compresses chunks in several threads; HDF5 itself uses only one.

    Args:
        pack: Returns a chunk as HDF5's filter would store it.
        num_threads: Number of threads. At most twice as many chunks are in memory.
    """

    def __init__(self, pack: Callable[[bytes], bytes], num_threads: int) -> None:
        self._pack = pack
        self._ahead = 2 * num_threads
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="checkpoint-compress")
        self._pending: deque[tuple[h5d.DatasetID, tuple[int, ...], Future[bytes]]] = deque()

    def write(self, dataset: h5d.DatasetID, start: tuple[int, ...], chunk: np.ndarray[Any, Any]) -> None:
        """Compress a whole chunk; chunks are written in the order of these calls."""
        while len(self._pending) >= self._ahead:
            self._write_first()
        self._pending.append((dataset, start, self._threads.submit(self._pack, chunk.tobytes())))

    def finish(self) -> None:
        """Write all pending chunks."""
        while self._pending:
            self._write_first()

    def close(self) -> None:
        """Stop the threads and drop pending chunks."""
        self._pending.clear()
        self._threads.shutdown(cancel_futures=True)

    def _write_first(self) -> None:
        dataset, start, packed = self._pending.popleft()
        dataset.write_direct_chunk(start, packed.result())


def packer(compression: str, num_threads: int) -> Packer | None:
    """Return a packer; None without compression, or for LZ4 if the package lz4 is missing."""
    if compression == "gzip":
        return Packer(lambda chunk: zlib.compress(chunk, GZIP_LEVEL), num_threads)
    if compression == "lz4" and importlib.util.find_spec("lz4") is not None:
        return Packer(_pack_lz4, num_threads)
    return None


def _pack_lz4(chunk: bytes) -> bytes:
    """Return a chunk as filter 32004 stores it: its size, the block size, the compressed block's size, and the block.

    A chunk is one block. A block that does not shrink is stored uncompressed.
    """
    import lz4.block

    packed = lz4.block.compress(chunk, store_size=False)
    stored = packed if len(packed) < len(chunk) else chunk
    return struct.pack(">QII", len(chunk), len(chunk), len(stored)) + stored


def write_compressed(
    dataset: h5d.DatasetID,
    name: str,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    chunk_dims: tuple[int, ...],
    chunks: Iterable[BytesLike],
    packer: Packer | None,
) -> int:
    """Write a tensor one HDF5 chunk at a time; return the CRC of its uncompressed bytes.

    Without a packer, HDF5's own filters compress it.
    """
    source = _Rebuffer(chunks)
    crc = 0
    type_id = h5t.py_create(dtype, logical=True)
    for start, count in _blocks(shape, chunk_dims):
        piece = source.take(h5_format.num_elements(count) * dtype.itemsize)
        if piece is None:
            raise ValueError(f"{name}: the chunks hold too few bytes for {dtype} {shape}")
        crc = crc32c(piece, crc)
        if packer is not None:
            values = piece.view(dtype).reshape(count)
            if count != chunk_dims:  # HDF5 stores whole chunks, even at an edge
                values = np.pad(values, [(0, size - some) for size, some in zip(chunk_dims, count, strict=True)])
            packer.write(dataset, start, values)
            continue
        file_space = dataset.get_space()
        file_space.select_hyperslab(start, count)
        dataset.write(h5s.create_simple(count), file_space, piece.view(dtype).reshape(count), type_id)
    if source.take(1) is not None:
        raise ValueError(f"{name}: the chunks hold too many bytes for {dtype} {shape}")
    if packer is not None:
        packer.finish()
    return crc


class _Rebuffer:
    """Regroups pieces of any size into pieces of a requested size."""

    def __init__(self, chunks: Iterable[BytesLike]) -> None:
        self._source = iter(chunks)
        self._rest: np.ndarray[Any, np.dtype[np.uint8]] = np.empty(0, np.uint8)

    def take(self, size: int) -> np.ndarray[Any, np.dtype[np.uint8]] | None:
        """Return the next bytes, or None if fewer are left."""
        out = np.empty(size, np.uint8)
        done = 0
        while done < size:
            if not self._rest.size:
                chunk = next(self._source, None)
                if chunk is None:
                    return None
                self._rest = flat_view(chunk)
                continue
            part = self._rest[: size - done]
            out[done : done + part.size] = part
            self._rest = self._rest[part.size :]
            done += part.size
        return out


def load_lz4() -> None:
    """Register the LZ4 filter with HDF5.

    Raises:
        CheckpointError: If the package hdf5plugin is missing.
    """
    try:
        import hdf5plugin  # noqa: F401 (registers the filter)
    except ImportError as exc:
        raise CheckpointError("LZ4 in HDF5 needs the package hdf5plugin: pip install hdf5plugin") from exc
