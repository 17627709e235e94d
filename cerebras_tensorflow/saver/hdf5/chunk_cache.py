"""Opening a chunked HDF5 dataset so that reading it in order decompresses each chunk once."""

from __future__ import annotations

import math
from typing import Any

import h5py

from cerebras_tensorflow.units import format_bytes

# Default size of HDF5's cache of decompressed chunks.
_DEFAULT_CACHE_BYTES = 1 << 20
# If a dataset needs more, refuse it: with a smaller cache, HDF5 would decompress its chunks again for every few rows.
_MAX_CACHE_BYTES = 1 << 30
_NUM_SLOTS = 100_003


def open_dataset(file: h5py.File, link: str) -> Any:
    """Return a dataset whose chunk cache holds all chunks that neighbouring rows share.

    Raises:
        KeyError: If there is no such dataset.
        OSError: If reading it in order would take more than 1 GiB of memory.
    """
    dataset = file[link]
    if dataset.chunks is None:
        return dataset
    cache_bytes = working_set_bytes(dataset.shape, dataset.chunks, dataset.dtype.itemsize)
    if cache_bytes <= _DEFAULT_CACHE_BYTES:
        return dataset
    if cache_bytes > _MAX_CACHE_BYTES:
        raise OSError(
            f"its HDF5 chunks of shape {dataset.chunks} take {format_bytes(cache_bytes)} of memory to read in order; "
            "store it in smaller chunks"
        )
    # The first open of a dataset sets its cache size, so close it before opening it again.
    del dataset
    access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
    access.set_chunk_cache(_NUM_SLOTS, cache_bytes, 1.0)
    return h5py.Dataset(h5py.h5d.open(file.id, link.encode(), access))


def working_set_bytes(shape: tuple[int, ...], chunks: tuple[int, ...], itemsize: int) -> int:
    """Return the total size of the chunks in use at one time when a dataset is read in row-major order [B].

    >>> working_set_bytes((1000, 5000), (10, 500), 4), working_set_bytes((1000, 5000), (1, 500), 4)
    (200000, 2000)
    """
    axis = next((axis for axis, size in enumerate(chunks) if size > 1), len(chunks))
    inner = [-(-dim // size) * size for dim, size in zip(shape[axis + 1 :], chunks[axis + 1 :], strict=True)]
    return math.prod(chunks[axis : axis + 1]) * math.prod(inner) * itemsize
