"""The order in which values of micro-batches are added: a balanced binary tree over their numbers.

The sum over `n` micro-batches is the sum of the first `k` plus the sum of the others, where `k` is the largest power of
two below `n`. So the sum of an aligned group of micro-batches is a node of the tree, whoever computes it and however
many micro-batches follow. A group (level, index) has the micro-batches from index * 2**level to (index + 1) * 2**level.
"""

from __future__ import annotations

from collections.abc import Sequence

Group = tuple[int, int]


def single(first: int, after: int) -> list[Group]:
    """Return one group for each micro-batch from `first` up to, but not including, `after`."""
    return [(0, number) for number in range(first, after)]


def absorbed(groups: Sequence[Group], is_whole: bool = True) -> list[int]:
    """Return how many earlier sums each group adds to its own.

    Sums are on a stack. Each group pops that many sums, one after the other, adds them to its own sum, and pushes the
    result.

    Args:
        groups: Consecutive groups.
        is_whole: Whether they cover all micro-batches of a step. The last group then adds all sums that are left.

    >>> absorbed(single(0, 4)), absorbed(single(0, 6)), absorbed(single(1, 5), is_whole=False)
    ([0, 1, 0, 2], [0, 1, 0, 2, 0, 2], [0, 0, 1, 0])
    """
    stack: list[Group] = []
    result = []
    for number, group in enumerate(groups):
        taken = 0
        while stack and (_are_siblings(stack[-1], group) or (is_whole and number == len(groups) - 1)):
            level, index = stack.pop()
            group = (level + 1, index // 2)
            taken += 1
        stack.append(group)
        result.append(taken)
    return result


def summed(first: int, after: int) -> list[Group]:
    """Return the groups whose sums are left after one rank has added up its own micro-batches.

    >>> summed(0, 6), summed(6, 12), summed(4, 8)
    ([(2, 0), (1, 2)], [(1, 3), (2, 2)], [(2, 1)])
    """
    stack: list[Group] = []
    for group in single(first, after):
        while stack and _are_siblings(stack[-1], group):
            level, index = stack.pop()
            group = (level + 1, index // 2)
        stack.append(group)
    return stack


def _are_siblings(left: Group, right: Group) -> bool:
    return left[0] == right[0] and left[1] % 2 == 0 and right[1] == left[1] + 1
