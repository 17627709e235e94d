"""Sums over ranks, in the order of the numbers of their micro-batches: the same bits on any number of ranks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from cerebras_tensorflow.runtime.collectives.interface import Bytes, Collectives
from cerebras_tensorflow.runtime.micro_batches.tree import Group, absorbed
from cerebras_tensorflow.runtime.weight_store.buffers import Buffers


def reduce_scatter(
    ranks: Collectives,
    own: Sequence[np.ndarray],
    groups: Sequence[Sequence[Group]],
    bounds: Sequence[int],
    buffers: Buffers | None = None,
) -> np.ndarray:
    """Return this rank's range of the sum over all micro-batches.

    Args:
        ranks: The group of ranks.
        own: This rank's sums, one for each group in groups[rank]: flat arrays of one dtype and length.
        groups: The groups of micro-batches that each rank has added up, in order.
        bounds: The start of each rank's range, then the total length.
        buffers: Provides the memory of the sum, and of what it is made of.

    Returns:
        The elements from bounds[rank] to bounds[rank + 1] of the sum.

    Raises:
        CollectiveError: If a rank failed or did not answer in time.
    """
    parts = [[value[begin:end] for value in own] for begin, end in itertools.pairwise(bounds)]
    buffers = buffers or Buffers()
    size, dtype = parts[ranks.rank][0].size, own[0].dtype
    incoming = [buffers.take(len(part) * size * dtype.itemsize).view(dtype).reshape(len(part), size) for part in groups]
    ranks.exchange([_joined(part) for part in parts], [_bytes(place) for place in incoming])
    values = [row for place in incoming for row in place]
    stack: list[np.ndarray] = []
    for value, taken in zip(values, absorbed([group for part in groups for group in part]), strict=True):
        for _ in range(taken):
            earlier = stack.pop()
            value = np.add(earlier, value, out=earlier)
        stack.append(value)
    return stack[0]


def _joined(parts: Sequence[np.ndarray]) -> Bytes:
    return _bytes(parts[0] if len(parts) == 1 else np.concatenate(parts))


def _bytes(value: np.ndarray) -> Bytes:
    """Return the bytes of a contiguous array, without a copy."""
    return value.reshape(-1).view(np.uint8)
