"""Splitting an HDF5 dataset into consecutive blocks in row-major order, to read it in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

BLOCK_BYTES = 4 << 20
# libhdf5 takes some 6 kB for each chunk that a selection touches.
_MAX_CHUNKS = 1 << 15


def blocks(
    shape: tuple[int, ...], chunks: tuple[int, ...] | None, itemsize: int, block_bytes: int = BLOCK_BYTES
) -> Iterator[tuple[slice, ...]]:
    """Yield selections of about `block_bytes` whose bytes, concatenated, are those of the whole array.

    Args:
        shape: Shape of the dataset.
        chunks: Shape of its HDF5 chunks. Blocks have whole chunks along their axis, so that few are decompressed twice,
            and a bounded number of them.
        itemsize: Size of an element [B].
        block_bytes: Wanted size [B].

    >>> list(blocks((5,), None, 4, block_bytes=8))
    [(slice(0, 2, None),), (slice(2, 4, None),), (slice(4, 5, None),)]
    """
    if 0 in shape:
        return
    if not shape:
        yield ()
        return
    sizes = shape if chunks is None else chunks
    axis, inner_bytes, inner_chunks = len(shape) - 1, itemsize, 1
    while axis > 0 and inner_bytes * shape[axis] <= block_bytes:
        across = inner_chunks * -(-shape[axis] // sizes[axis])
        if across > _MAX_CHUNKS:
            break
        inner_bytes *= shape[axis]
        inner_chunks = across
        axis -= 1
    step = max(min(block_bytes // inner_bytes, _MAX_CHUNKS // inner_chunks * sizes[axis]), 1)
    if chunks is not None and step > chunks[axis]:
        step -= step % chunks[axis]
    for lead in np.ndindex(shape[:axis]):
        outer = tuple(slice(index, index + 1) for index in lead)
        for start in range(0, shape[axis], step):
            yield (*outer, slice(start, min(start + step, shape[axis])), *(slice(0, dim) for dim in shape[axis + 1 :]))
