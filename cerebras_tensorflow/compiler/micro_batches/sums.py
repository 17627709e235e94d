"""Chooses where the sums of gradients over micro-batches are kept: in the weight store or in host memory."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cerebras_tensorflow.graph.cost import Output
from cerebras_tensorflow.graph.micro_batches import Gradient, bounds_of, sum_dtype
from cerebras_tensorflow.graph.program import WeightSpec, dtype_from_name


def num_partials(count: int, num_csx: int = 1) -> int:
    """Return how many partial sums one CSX has at most while `count` micro-batches are added in a balanced tree.

    One CSX does not keep its last micro-batch. Of several, each keeps all its partial sums until they are exchanged.

    >>> [num_partials(count) for count in (1, 2, 3, 4, 5, 7, 8)]
    [0, 1, 1, 2, 2, 2, 3]
    >>> num_partials(4, 4), num_partials(12, 2), num_partials(8, 3)
    (1, 3, 2)
    """
    if num_csx == 1:
        return count.bit_length() - 1
    bounds = bounds_of(count, num_csx)
    shares = itertools.pairwise(bounds)
    return max(_num_groups(first, last) for first, after in shares for last in range(first + 1, after + 1))


def _num_groups(first: int, after: int) -> int:
    """Return how many aligned groups, each a power of two, make up the micro-batches from first to after."""
    number = 0
    while first < after:
        aligned = first & -first or 1 << 62
        first += min(aligned, 1 << ((after - first).bit_length() - 1))
        number += 1
    return number


def partial_sums(
    gradients: Sequence[Gradient], stored: Mapping[int, int], weights: Sequence[WeightSpec], levels: int, first: int
) -> tuple[tuple[Gradient, ...], tuple[WeightSpec, ...]]:
    """Return the gradients with the indices of their partial sums in the store, and the specs of the partial sums.

    Args:
        gradients: The gradients.
        stored: Number of a gradient -> index of its total in the store.
        weights: Specs of the streamed variables, including the totals.
        levels: Partial sums of a gradient, from num_partials.
        first: Index of the first partial sum in the store.
    """
    placed: list[Gradient] = []
    scratch: list[WeightSpec] = []
    for number, gradient in enumerate(gradients):
        if number not in stored:
            placed.append(gradient)
            continue
        total = weights[stored[number]]
        dtype = sum_dtype(gradient.dtype)
        num_bytes = total.num_bytes // dtype_from_name(total.dtype).itemsize * dtype_from_name(dtype).itemsize
        specs = [WeightSpec(f"{total.name}/partial_{level}", dtype, total.shape, num_bytes) for level in range(levels)]
        begin = first + len(scratch)
        indices = tuple(range(begin, begin + len(specs)))
        placed.append(replace(gradient, stored=stored[number], partials=indices))
        scratch.extend(specs)
    return tuple(placed), tuple(scratch)


def host_bytes(gradients: Sequence[Gradient], outputs: Mapping[str, Sequence[Output]], levels: int) -> int:
    """Return the host memory that sums of gradients take [B]: the partial sums and the total."""
    sizes = 0
    for gradient in gradients:
        if gradient.stored is None:
            output = outputs[gradient.mark.values][0]
            scale = dtype_from_name(sum_dtype(output.dtype)).itemsize / dtype_from_name(output.dtype).itemsize
            sizes += int(output.num_bytes * scale)
    return sizes * (levels + 1)
