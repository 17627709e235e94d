"""Chooses the weights with the largest scores.

The numbers of weights are computed in float32, as in the published implementation. Of equal scores, the first ones win.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Balance:
    """Groups of inputs or outputs of a layer that keep the same number of weights each.

    Attributes:
        axis: Dim of the weight that is split: -2 for inputs, -1 for outputs.
        num_groups: Number of groups. It divides that dim.
    """

    axis: int
    num_groups: int

    def rows(self, array: NDArray[np.generic]) -> NDArray[np.generic]:
        """Return an array (in, out) with one row for each group."""
        return np.moveaxis(array, self.axis, 0).reshape(self.num_groups, -1)

    def whole(self, rows: Mask, shape: tuple[int, ...]) -> Mask:
        """Return a mask in the weight's shape from one with a row for each group."""
        moved = [shape[self.axis], *np.delete(shape, self.axis)]
        return np.ascontiguousarray(np.moveaxis(rows.reshape(moved), 0, self.axis))


def num_kept(size: int, sparsity: float | np.float32) -> int:
    """Return how many of `size` weights stay: trunc((1 - s) n), in float32.

    >>> num_kept(10, 0.9), num_kept(4, 0.75)
    (1, 1)
    """
    return int((np.float32(1) - np.float32(sparsity)) * np.float32(size))


def top_k(score: NDArray[np.generic], count: int) -> Mask:
    """Return which values are among the `count` largest of each row; NaN counts as largest.

    Args:
        score: (rows, values).
        count: Values to choose per row.
    """
    rows, size = score.shape
    if count <= 0 or count >= size:
        return np.full(score.shape, count > 0)
    values = np.asarray(score, np.float32)
    values = np.where(np.isnan(values), np.float32(np.inf), values)
    least = np.partition(values, size - count, axis=1)[:, size - count, None]
    mask: Mask = values > least
    for row in range(rows):
        ties = np.flatnonzero(values[row] == least[row])
        mask[row, ties[: count - int(np.count_nonzero(mask[row]))]] = True
    return mask


def keep_largest(score: NDArray[np.generic], sparsity: float | np.float32, balance: Balance | None = None) -> Mask:
    """Return the mask of the largest scores: trunc((1 - s) n) of the weight, or of each group."""
    if balance is None:
        flat = score.reshape(1, -1)
        return top_k(flat, num_kept(flat.shape[1], sparsity)).reshape(score.shape)
    rows = balance.rows(score)
    return balance.whole(top_k(rows, num_kept(rows.shape[1], sparsity)), score.shape)


def drop_and_grow(
    magnitude: NDArray[np.generic],
    growth: NDArray[np.generic],
    mask: Mask,
    drop_fraction: float | np.float32,
    sparsity: float | np.float32,
    balance: Balance | None = None,
) -> Mask:
    """Return the next mask: drop the smallest weights of a mask, then grow those with the best scores.

    k = trunc((1 - f) |M|) largest magnitudes stay. The best max(trunc((1 - s) n) - k, 0) others by growth score join
    them; a dropped weight may come back at once. Evci et al. (2020), Algorithm 1, with the published counts.

    Args:
        magnitude: |w|, in the weight's shape.
        growth: Score of each place.
        mask: The weights that are in use.
        drop_fraction: f, the share of them to drop.
        sparsity: s, the target.
        balance: Groups that are treated separately.
    """
    num_groups = balance.num_groups if balance else 1
    held = np.float32(np.count_nonzero(mask)) / np.float32(num_groups)
    num_stay = int((np.float32(1) - np.float32(drop_fraction)) * held)
    scores = balance.rows(magnitude) if balance else magnitude.reshape(1, -1)
    stay = top_k(scores, num_stay)
    candidates = np.asarray(balance.rows(growth) if balance else growth.reshape(1, -1), np.float32)
    candidates = np.where(stay, np.float32(-np.inf), candidates)
    grown = top_k(candidates, max(0, num_kept(stay.shape[1], sparsity) - num_stay))
    new: Mask = stay | grown
    return balance.whole(new, mask.shape) if balance else new.reshape(mask.shape)
