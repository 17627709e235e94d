"""Chooses where the sums of gradients over micro-batches are kept: in the weight store or in host memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cerebras_tensorflow.graph.cost import Output
from cerebras_tensorflow.graph.micro_batches import Gradient, sum_dtype
from cerebras_tensorflow.graph.program import WeightSpec, dtype_from_name


def num_partials(count: int) -> int:
    """Return how many partial sums exist at most while `count` micro-batches are added in a balanced tree.

    >>> [num_partials(count) for count in (1, 2, 3, 4, 5, 7, 8)]
    [0, 1, 1, 2, 2, 2, 3]
    """
    return count.bit_length() - 1


def partial_sums(
    gradients: Sequence[Gradient], stored: Mapping[int, int], weights: Sequence[WeightSpec], count: int, first: int
) -> tuple[tuple[Gradient, ...], tuple[WeightSpec, ...]]:
    """Return the gradients with the indices of their partial sums in the store, and the specs of the partial sums.

    Args:
        gradients: The gradients.
        stored: Number of a gradient -> index of its total in the store.
        weights: Specs of the streamed variables, including the totals.
        count: Micro-batches of a step.
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
        specs = [
            WeightSpec(f"{total.name}/partial_{level}", dtype, total.shape, num_bytes)
            for level in range(num_partials(count))
        ]
        begin = first + len(scratch)
        indices = tuple(range(begin, begin + len(specs)))
        placed.append(replace(gradient, stored=stored[number], partials=indices))
        scratch.extend(specs)
    return tuple(placed), tuple(scratch)


def host_bytes(gradients: Sequence[Gradient], outputs: Mapping[str, Sequence[Output]], count: int) -> int:
    """Return the host memory that sums of gradients take [B]: the partial sums and the total."""
    sizes = 0
    for gradient in gradients:
        if gradient.stored is None:
            output = outputs[gradient.mark.values][0]
            scale = dtype_from_name(sum_dtype(output.dtype)).itemsize / dtype_from_name(output.dtype).itemsize
            sizes += int(output.num_bytes * scale)
    return sizes * (num_partials(count) + 1)
