"""Chooses where the sums of gradients over micro-batches are kept: in the weight store or in host memory."""

from __future__ import annotations

import itertools
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace

from cerebras_tensorflow.graph.cost import Output
from cerebras_tensorflow.graph.micro_batches import EVERY, Gradient, bounds_of, sum_dtype
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
    return len(_ends(first, after))


def num_own_partials(count: int, num_csx: int, rank: int) -> int:
    """Return how many partial sums of its own micro-batches a CSX keeps, if it sends them during its last one.

    >>> [num_own_partials(4, 4, 0), num_own_partials(12, 2, 0), num_own_partials(8, 3, 1), num_own_partials(6, 2, 1)]
    [0, 2, 1, 2]
    """
    first, after = bounds_of(count, num_csx)[rank : rank + 2]
    return max((_num_groups(first, last) for last in range(first + 1, after)), default=0)


def num_waiting(count: int, num_csx: int) -> int:
    """Return how many sums of several CSX wait at most, on the CSX that adds them in the order of the micro-batches.

    >>> [num_waiting(count, num_csx) for count, num_csx in ((2, 2), (4, 4), (8, 8), (12, 2), (12, 3))]
    [1, 2, 3, 2, 1]
    """
    bounds = bounds_of(count, num_csx)
    ends = [end for first, after in itertools.pairwise(bounds) for end in _ends(first, after)]
    return max(end.bit_count() for end in ends if end < count)


def choose_adders(owners: Mapping[int, int], sizes: Mapping[int, int], num_csx: int) -> dict[int, int]:
    """Return the CSX that adds the sums of each gradient: its owner. Those that all CSX need are spread evenly.

    Args:
        owners: Number of a gradient -> its owner, or EVERY.
        sizes: Number of a gradient -> its size [B].
        num_csx: Number of CSX.

    >>> choose_adders({0: EVERY, 1: 1, 2: EVERY, 3: EVERY}, {0: 5, 1: 9, 2: 8, 3: 4}, 2)
    {0: 1, 1: 1, 2: 0, 3: 1}
    """
    adders = dict(owners)
    load = [0] * num_csx
    for number in sorted(owners, key=lambda number: -sizes[number]):
        if owners[number] == EVERY:
            adders[number] = load.index(min(load))
            load[adders[number]] += sizes[number]
    return adders


@dataclass(frozen=True)
class SharedSums:
    """Where one of several CSX that share the weights keeps sums, by the number of the gradient in the store.

    Attributes:
        rank: The CSX.
        own: How many partial sums of its own micro-batches it keeps.
        adders: The CSX that adds the sums of all CSX.
        waiting: How many sums wait there, besides the one in the place of the total.
    """

    rank: int
    own: int
    adders: Mapping[int, int]
    waiting: Mapping[int, int]

    @property
    def levels(self) -> dict[int, int]:
        """How many partial sums of each gradient the CSX has room for."""
        return {
            number: self.own + (self.waiting[number] if adder == self.rank else 0)
            for number, adder in self.adders.items()
        }

    def placed(self, number: int, gradient: Gradient) -> Gradient:
        """Return a gradient that knows which partial sums are the CSX's own, and which are of several CSX."""
        if number not in self.adders or gradient.stored is None:
            return gradient
        own, waiting = gradient.partials[: self.own], gradient.partials[self.own :]
        if self.adders[number] == self.rank and _is_added_in_place(gradient):
            waiting = (gradient.stored, *waiting)
        return replace(gradient, partials=own, waiting=waiting, adder=self.adders[number])


def share_sums(
    gradients: Sequence[Gradient], owners: Mapping[int, int], sizes: Mapping[int, int], num_csx: int, count: int
) -> list[SharedSums]:
    """Return where each CSX keeps sums.

    Args:
        gradients: The gradients.
        owners: Number of a gradient in the store -> the owner of its total, or EVERY.
        sizes: Number of a gradient in the store -> its size [B].
        num_csx: Number of CSX.
        count: Micro-batches of one step.
    """
    adders = choose_adders(owners, sizes, num_csx)
    most = num_waiting(count, num_csx)
    waiting = {number: most - _is_added_in_place(gradients[number]) for number in owners}
    return [SharedSums(rank, num_own_partials(count, num_csx, rank), adders, waiting) for rank in range(num_csx)]


def _is_added_in_place(gradient: Gradient) -> bool:
    """Whether the place of the total can hold a sum."""
    return sum_dtype(gradient.dtype) == gradient.dtype


def _ends(first: int, after: int) -> list[int]:
    """Return where the aligned groups of the micro-batches from first to after end."""
    ends = []
    while first < after:
        aligned = first & -first or 1 << 62
        first += min(aligned, 1 << ((after - first).bit_length() - 1))
        ends.append(first)
    return ends


def partial_sums(
    gradients: Sequence[Gradient],
    stored: Mapping[int, int],
    weights: Sequence[WeightSpec],
    levels: Mapping[int, int],
    first: int,
) -> tuple[tuple[Gradient, ...], tuple[WeightSpec, ...]]:
    """Return the gradients with the indices of their partial sums in the store, and the specs of the partial sums.

    Args:
        gradients: The gradients.
        stored: Number of a gradient -> index of its total in the store.
        weights: Specs of the streamed variables, including the totals.
        levels: Number of a gradient -> how many partial sums it has.
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
            for level in range(levels[number])
        ]
        begin = first + len(scratch)
        indices = tuple(range(begin, begin + len(specs)))
        placed.append(replace(gradient, stored=stored[number], partials=indices))
        scratch.extend(specs)
    return tuple(placed), tuple(scratch)


def host_bytes(
    gradients: Sequence[Gradient], stored: Container[int], outputs: Mapping[str, Sequence[Output]], levels: int
) -> int:
    """Return the host memory that sums of gradients take [B]: the partial sums and the total.

    Args:
        gradients: The gradients.
        stored: Numbers of those whose sums are in the store.
        outputs: Outputs of each op.
        levels: How many partial sums each has.
    """
    sizes = 0
    for number, gradient in enumerate(gradients):
        if number not in stored:
            output = outputs[gradient.mark.values][0]
            scale = dtype_from_name(sum_dtype(output.dtype)).itemsize / dtype_from_name(output.dtype).itemsize
            sizes += int(output.num_bytes * scale)
    return sizes * (levels + 1)
