"""The micro-batches that one of several CSX computes, and what it needs from the others to complete a sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from cerebras_tensorflow.graph.micro_batches import MicroBatches, bounds_of
from cerebras_tensorflow.runtime.micro_batches.tree import Group, absorbed, single, summed
from cerebras_tensorflow.runtime.weight_store.buffers import Buffers


@dataclass(frozen=True)
class Share:
    """Consecutive micro-batches of a step.

    Attributes:
        rank: Number of the CSX.
        bounds: First micro-batch of each CSX, then the number of all micro-batches.
    """

    rank: int
    bounds: tuple[int, ...]

    @classmethod
    def of(cls, plan: MicroBatches, rank: int) -> Share:
        """Return the share of one CSX."""
        return cls(rank, bounds_of(plan.count, plan.num_csx))

    @property
    def first(self) -> int:
        """Number of its first micro-batch in the step."""
        return self.bounds[self.rank]

    @property
    def size(self) -> int:
        """Number of its micro-batches."""
        return self.bounds[self.rank + 1] - self.first

    @property
    def is_whole(self) -> bool:
        """Whether it has all micro-batches of a step."""
        return len(self.bounds) == 2

    @property
    def absorbed(self) -> list[int]:
        """How many earlier sums each of its micro-batches adds to its own."""
        return absorbed(single(self.first, self.first + self.size), self.is_whole)

    @property
    def groups(self) -> list[list[Group]]:
        """The groups of micro-batches that each CSX adds up alone."""
        return [summed(first, after) for first, after in zip(self.bounds, self.bounds[1:], strict=False)]


class Across(Protocol):
    """Completes sums across all CSX. Each CSX makes the same calls in the same order."""

    @property
    def rank(self) -> int:
        """Number of this CSX."""

    @property
    def buffers(self) -> Buffers:
        """Memory for sums."""

    @property
    def num_csx(self) -> int:
        """Number of CSX."""

    def check(self) -> None:
        """Raise a CollectiveError if another CSX is known to have failed."""

    def barrier(self) -> None:
        """Wait until every CSX calls this."""

    def dense(self, sums: Sequence[Sequence[np.ndarray]], divisor: int) -> list[np.ndarray]:
        """Return the mean of each value: flat arrays, with the dtype of the sums.

        Args:
            sums: For each value, this CSX's sums, one for each of its groups.
            divisor: Number of micro-batches of a step.
        """

    def rows(
        self, sums: Sequence[tuple[np.ndarray, np.ndarray]], divisor: int, owner: int
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Return (values, rows) of the mean of a gradient of an embedding, from the sums of this CSX's groups.

        Args:
            sums: The sums.
            divisor: Number of micro-batches of a step.
            owner: The CSX that gets the mean, or EVERY. On another CSX the result is None.
        """
