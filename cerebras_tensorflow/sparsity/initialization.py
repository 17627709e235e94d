"""First masks: random, by magnitude, from zeros, or a checkerboard."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from cerebras_tensorflow.sparsity.selection import Balance, Mask, keep_largest, num_kept, top_k

RANDOM_INIT, RANDOM_GROWTH = 0, 1
"""What random numbers are for; part of their key."""
_PLACES = 1 << 20  # of a checkerboard, computed at a time


def noise(seed: int, purpose: int, step: int, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return uniform noise in [0, 1). It depends only on the arguments, so a resumed run draws the same.

    Args:
        seed: Seed of the run.
        purpose: RANDOM_INIT or RANDOM_GROWTH.
        step: Number of the step.
        name: Name of the weight.
        shape: Shape of the result.
    """
    key = np.random.SeedSequence([seed, purpose, step, zlib.crc32(name.encode())])
    return np.random.Generator(np.random.Philox(key)).random(shape, np.float32)


def _random(name: str, weight: NDArray[np.generic], sparsity: np.float32, balance: Balance | None, seed: int) -> Mask:
    return keep_largest(noise(seed, RANDOM_INIT, 0, name, weight.shape), sparsity, balance)


def _topk(_: str, weight: NDArray[np.generic], sparsity: np.float32, balance: Balance | None, _seed: int) -> Mask:
    return keep_largest(np.abs(weight), sparsity, balance)


def _balanced_topk(
    _: str, weight: NDArray[np.generic], sparsity: np.float32, _balance: Balance | None, _seed: int
) -> Mask:
    """The same number of smallest weights of each output, then globally down to the count of topk.

    Source: the numpy class of releases 1.7 and 1.8: int(s rows) of each column, then the rest.
    """
    columns = np.abs(np.asarray(weight, np.float32)).reshape(-1, weight.shape[-1]).T
    rows = columns.shape[1]
    stay = top_k(columns, rows - int(np.float32(sparsity) * np.float32(rows)))
    left = num_kept(weight.size, sparsity)
    scores = np.where(stay, columns, np.float32(-np.inf)).T.reshape(1, -1)
    return top_k(scores, left).reshape(weight.shape)


def _from_zeros(
    _: str, weight: NDArray[np.generic], _sparsity: np.float32, _balance: Balance | None, _seed: int
) -> Mask:
    """Weights that are zero are pruned, whatever the sparsity."""
    return np.asarray(weight != 0)


def _checkerboard(
    _: str, weight: NDArray[np.generic], sparsity: np.float32, _balance: Balance | None, _seed: int
) -> Mask:
    """Evenly distributed places: place i stays if floor((i + 1) d) > floor(i d), for d = 1 - s, in float32.

    As in the published implementation, each row is the one before, rolled by 1 / d places. The rows that roll have more
    places than the weight, so that the end of a row has its share too. Near s = 1 they have far more, so only the
    places of the weight are computed, some rows at a time.
    """
    columns = weight.shape[-1]
    rows = weight.size // columns
    density = 1 - float(sparsity)
    if density <= 0:
        return np.zeros(weight.shape, bool)
    period = columns + int(np.ceil(columns / density + 1e-5)) - 1
    shift = int(np.floor(1 / density - 1e-5))

    def step(places: NDArray[np.int64]) -> NDArray[np.float32]:
        return np.floor(places.astype(np.float32) * np.float32(density) + np.float32(1e-5))

    mask = np.empty((rows, columns), bool)
    height = max(1, _PLACES // columns)
    for top in range(0, rows, height):
        rolled = np.arange(top, min(top + height, rows))[:, None] * shift
        places = (np.arange(columns) + rolled) % period
        mask[top : top + height] = step(places + 1) != step(places)
    return mask.reshape(weight.shape)


InitMethod = Callable[[str, NDArray[np.generic], np.float32, Balance | None, int], Mask]
"""(name, weight, sparsity, balance, seed) -> mask."""

INIT_METHODS: Mapping[str, InitMethod] = {
    "random": _random,
    "topk": _topk,
    "balanced-topk": _balanced_topk,
    "from_zeros": _from_zeros,
    "checkerboard": _checkerboard,
}
"""Value of init_method -> its function."""

BALANCED_METHODS = ("random", "topk")
"""Those that keep the same number of weights in each group of inputs or outputs."""
