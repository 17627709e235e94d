"""Sparsifiers for `CerebrasEstimator.train(sparsifier=...)`, under the original's names. They choose weights to remove.

| name | weights that stay |
|---|---|
| topk | those with the largest magnitude at the first choice |
| balanced-topk | the same, with about an equal number in each column |
| constant | a random choice, made once |
| set | a random choice; each later choice replaces the smallest by others, from zero (Mocanu et al., 2018) |
| checkerboard | every other one |
| file | those that are not zero in a mask file |
| static, gmp, rigl | as in cerebras_tensorflow.sparsity, which the docs page "Sparsity" describes |

Biases, scales, embeddings, normalizations and output heads stay dense, as in cerebras_tensorflow.sparsity.

topk and balanced-topk choose once: a removed weight is zero at the next choice, so it is among the smallest and is
removed again. "gmp" and "rigl" change their choice each n_iter steps, as "set" does.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from typing_extensions import override

from cerebras_tensorflow.errors import SettingsError
from cerebras_tensorflow.sparsity.algorithms import GMP, RigL, Static
from cerebras_tensorflow.sparsity.configure import is_sparse_by_default
from cerebras_tensorflow.sparsity.schedules import read_schedule

DISTRIBUTIONS = ("uniform", "er", "erk")


class Sparsifier:
    """Chooses weights each n_iter steps.

    Args:
        n_iter: Steps between choices. The first choice is at step 0. Only "set" chooses other weights later.
        sparsity_level: Share of the weights to remove, from 0 to less than 1.
        sparsity_distribution: "uniform" removes that share of each variable. "er" and "erk" remove that share overall,
            and less of variables with few rows and columns (erk: small dims), as in Evci et al. (2020).
        erk_power_scale: Exponent of the "erk" density.
        epsilon: For "er" and "erk": a density factor that replaces sparsity_level.
        zeta: Share of the weights that "set" exchanges at a choice.
        seed: Seed of the random choices.
        mask_file: For "file": an NPZ file of masks by variable name.
        sparse_val: Value of removed weights, unless the caller of get_masked_weights gives one. NaN as in 1.7 and 1.8.

    Raises:
        SettingsError: If a value is out of range.
    """

    def __init__(
        self,
        n_iter: int,
        sparsity_level: float = 0.5,
        sparsity_distribution: str = "uniform",
        erk_power_scale: float = 1.0,
        epsilon: float | None = None,
        zeta: float = 0.3,
        seed: int | None = None,
        mask_file: str | None = None,
        sparse_val: float = np.nan,
    ) -> None:
        if n_iter <= 0:
            raise SettingsError(f"n_iter is {n_iter}: expected a number of steps, 1 or more")
        for name, share in (("sparsity_level", sparsity_level), ("zeta", zeta)):
            if not 0 <= share < 1:
                raise SettingsError(f"{name} is {share}: expected a share from 0 to less than 1")
        if sparsity_distribution not in DISTRIBUTIONS:
            raise SettingsError(
                f"sparsity_distribution is {sparsity_distribution!r}: expected one of {', '.join(DISTRIBUTIONS)}"
            )
        self.n_iter = n_iter
        self.sparsity_level = sparsity_level
        self.sparsity_distribution = sparsity_distribution
        self.erk_power_scale = erk_power_scale
        self.epsilon = epsilon
        self.zeta = zeta
        self.seed = seed or 0
        self.mask_file = mask_file
        self.sparse_val = sparse_val
        self._taken: dict[str, int] = {}

    def apply_sparsity(self, step: int) -> bool:
        """Whether the sparsifier makes a choice at a step."""
        return step % self.n_iter == 0

    def should_sparsify_weight(self, name: str, weight: np.ndarray) -> bool:
        """Whether a variable may become sparse."""
        return is_sparse_by_default(name, weight.shape)

    def get_masked_weights(
        self, step: int, weights_dict: Mapping[str, np.ndarray], sparse_val: float | None = None
    ) -> dict[str, np.ndarray]:
        """Return all weights, with sparse_val in place of the removed ones.

        NaN stands for a weight that was removed before. It counts as zero, and is zero if it is in use again.

        Raises:
            SettingsError: If weights are integers and sparse_val is not.
        """
        value = self.sparse_val if sparse_val is None else sparse_val
        chosen = {name: weight for name, weight in weights_dict.items() if self.should_sparsify_weight(name, weight)}
        sparsities = self._sparsities({name: weight.shape for name, weight in chosen.items()})
        result = dict(weights_dict)
        for name, given in chosen.items():
            weight = np.where(np.isnan(given), np.zeros((), given.dtype), given)
            stays = self._stays(step, name, weight, sparsities[name])
            if weight.dtype.kind in "biu" and not float(value).is_integer():
                raise SettingsError(
                    f"{name}: its weights are {weight.dtype}, and sparse_val, the value of removed ones, is {value}; "
                    "give a whole number, such as sparse_val=0"
                )
            self._taken[name] = weight.size - int(stays.sum())
            result[name] = np.where(stays, weight, np.asarray(value, weight.dtype))
        return result

    def get_num_sparsified_values(
        self,
        v_name: str,
        sparse_val: float | None = None,  # noqa: ARG002 - the original's signature
    ) -> int:
        """Return the number of weights of a variable that the last choice removed."""
        return self._taken.get(v_name, 0)

    def expected_sparsity(self, weights: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Return the share that a choice removes of each variable that may become sparse."""
        shapes = {name: value.shape for name, value in weights.items() if self.should_sparsify_weight(name, value)}
        return self._sparsities(shapes)

    def _sparsities(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, float]:
        if self.sparsity_distribution == "uniform":
            return dict.fromkeys(shapes, self.sparsity_level)
        return {name: 1 - density for name, density in self._densities(shapes).items()}

    def _densities(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, float]:
        raw = {name: self._raw_density(shape) for name, shape in shapes.items()}
        if self.epsilon is not None:
            return {name: min(1.0, self.epsilon * density) for name, density in raw.items()}
        sizes = {name: int(np.prod(shape)) for name, shape in shapes.items()}
        dense: set[str] = set()
        while True:  # variables whose density would exceed 1 stay dense; the others get sparser to compensate
            rest = (1 - self.sparsity_level) * sum(sizes.values()) - sum(sizes[name] for name in dense)
            weight = sum(raw[name] * sizes[name] for name in raw if name not in dense)
            scale = max(0.0, rest) / weight if weight else 0.0
            above = {name for name in raw if name not in dense and raw[name] * scale > 1}
            if not above:
                return {name: 1.0 if name in dense else raw[name] * scale for name in raw}
            dense |= above

    def _raw_density(self, shape: tuple[int, ...]) -> float:
        if self.sparsity_distribution == "er":
            rows, columns = int(np.prod(shape[:-1])), shape[-1]
            return (rows + columns) / (rows * columns)
        return float((sum(shape) / np.prod(shape, dtype=np.float64)) ** self.erk_power_scale)

    def _stays(self, step: int, name: str, weight: np.ndarray, sparsity: float) -> np.ndarray:
        """Return which elements of a weight stay: booleans of the weight's shape."""
        raise NotImplementedError

    def _random(self, name: str, step: int = 0) -> np.random.Generator:
        return np.random.default_rng([self.seed, zlib.crc32(name.encode()), step])

    def _drawn(self, name: str, shape: tuple[int, ...], sparsity: float) -> np.ndarray:
        size = int(np.prod(shape))
        stays = np.zeros(size, bool)
        stays[self._random(name).permutation(size)[: round(size * (1 - sparsity))]] = True
        return stays.reshape(shape)


class TopK(Sparsifier):
    """The largest magnitudes stay."""

    @override
    def _stays(self, step: int, name: str, weight: np.ndarray, sparsity: float) -> np.ndarray:
        return _largest(np.abs(weight).reshape(1, -1), int(weight.size * (1 - sparsity))).reshape(weight.shape)


class BalancedTopK(Sparsifier):
    """The largest magnitudes of each column stay; of them, as many as with topk."""

    @override
    def _stays(self, step: int, name: str, weight: np.ndarray, sparsity: float) -> np.ndarray:
        columns = np.abs(weight).reshape(-1, weight.shape[-1]).T
        rows = columns.shape[1]
        of_columns = _largest(columns, rows - int(sparsity * rows))
        scores = np.where(of_columns, columns, -np.inf).T.reshape(1, -1)
        return _largest(scores, int(weight.size * (1 - sparsity))).reshape(weight.shape)


class Constant(Sparsifier):
    """A random choice, made once, stays."""

    @override
    def _stays(self, step: int, name: str, weight: np.ndarray, sparsity: float) -> np.ndarray:
        return self._drawn(name, weight.shape, sparsity)


class Evolutionary(Sparsifier):
    """Sparse evolutionary training: each choice replaces the smallest weights by random others."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._current: dict[str, np.ndarray] = {}
        self._taken_over_at: int | None = None

    def take_over(self, step: int, kept: Mapping[str, np.ndarray]) -> None:
        """Continue with the choice of a resumed run, which covers this step already."""
        self._current = dict(kept)
        self._taken_over_at = step

    @override
    def _stays(self, step: int, name: str, weight: np.ndarray, sparsity: float) -> np.ndarray:
        before = self._current.get(name)
        if before is None:
            stays = self._drawn(name, weight.shape, sparsity)
        elif step == self._taken_over_at:
            stays = before
        else:
            flat = before.reshape(-1).copy()
            there = np.flatnonzero(flat)
            exchanged = min(int(len(there) * self.zeta), flat.size - len(there))
            smallest = there[np.argsort(np.abs(weight).reshape(-1)[there], kind="stable")[:exchanged]]
            absent = np.flatnonzero(~flat)
            flat[smallest] = False
            flat[self._random(name, step).choice(absent, exchanged, replace=False)] = True
            stays = flat.reshape(weight.shape)
        self._current[name] = stays
        return stays


class Checkerboard(Sparsifier):
    """Every other weight stays.

    Raises:
        SettingsError: If sparsity_level is not 0.5.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.sparsity_level != 0.5:
            raise SettingsError(f"sparsity_level is {self.sparsity_level}: a checkerboard needs 0.5")

    @override
    def _stays(self, step: int, name: str, weight: np.ndarray, sparsity: float) -> np.ndarray:
        return np.indices(weight.shape, sparse=False).sum(axis=0) % 2 == 0


class FromFile(Sparsifier):
    """Weights that are not zero in a mask file stay. Variables that the file lacks stay dense.

    Raises:
        SettingsError: If mask_file is missing, or the shape of a mask is not that of its variable.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.mask_file is None:
            raise SettingsError("mask_file is missing: give an NPZ file of masks by variable name")
        with np.load(self.mask_file, allow_pickle=False) as masks:
            self._masks = {name: masks[name] != 0 for name in masks.files}

    @override
    def expected_sparsity(self, weights: Mapping[str, np.ndarray]) -> dict[str, float]:
        return {name: 1 - float(self._masks[name].mean()) for name in weights if name in self._masks}

    @override
    def _stays(self, step: int, name: str, weight: np.ndarray, sparsity: float) -> np.ndarray:
        mask = self._masks.get(name)
        if mask is None:
            return np.ones(weight.shape, bool)
        if mask.shape != weight.shape:
            raise SettingsError(
                f"{self.mask_file}: the mask of {name} has shape {mask.shape}, the variable {weight.shape}"
            )
        return mask


class FixedChoice(Static):
    """Static sparsity with the arguments of this module.

    Args:
        n_iter: Ignored: the first choice stays.
        sparsity_level: Share of the weights to remove.
        seed: Seed of the random choice.
    """

    def __init__(self, n_iter: int = 1, sparsity_level: Any = 0.5, seed: int | None = None, **settings: Any) -> None:  # noqa: ARG002 - every class takes n_iter
        super().__init__(sparsity_level, seed=seed, **settings)


class GradualPruning(GMP):
    """Gradual magnitude pruning with the arguments of this module.

    Args:
        n_iter: Steps between choices.
        sparsity_level: A schedule, or the share at the end. A number is approached exponentially: 63 % of the way after
            10 choices.
        seed: Not used by this method.
    """

    def __init__(self, n_iter: int, sparsity_level: Any = 0.5, seed: int | None = None, **settings: Any) -> None:
        if isinstance(sparsity_level, (int, float)):
            level = read_schedule("sparsity_level", sparsity_level, 1.0).values[0]
            sparsity_level = {"type": "exp", "init": 0.0, "final": level, "gamma": -1 / (10 * max(1, n_iter))}
        super().__init__(sparsity_level, update={"freq": n_iter}, seed=seed, **settings)


class GradientGrowth(RigL):
    """RigL with the arguments of this module.

    Args:
        n_iter: Steps between choices.
        sparsity_level: Share of the weights to remove.
        zeta: Share of the weights in use that a choice exchanges.
        seed: Seed of the first, random choice.
    """

    def __init__(
        self, n_iter: int, sparsity_level: Any = 0.5, zeta: Any = 0.3, seed: int | None = None, **settings: Any
    ) -> None:
        super().__init__(sparsity_level, update={"freq": n_iter}, drop_fraction=zeta, seed=seed, **settings)


SPARSIFIER_MAP: dict[str, type[Any]] = {
    "topk": TopK,
    "balanced-topk": BalancedTopK,
    "constant": Constant,
    "set": Evolutionary,
    "checkerboard": Checkerboard,
    "file": FromFile,
    "static": FixedChoice,
    "gmp": GradualPruning,
    "rigl": GradientGrowth,
}
"""Name in params -> sparsifier class."""


def get_AdamW_aware_sparsifier_class(base: type[Any]) -> type[Any]:
    """Return a subclass of `base`. The moments of removed weights are zero with any class, so it behaves the same."""
    return type(f"AdamWAware{base.__name__}", (base,), {})


def _largest(rows: np.ndarray, count: int) -> np.ndarray:
    """Return which values are among the largest of their row, `count` of each. Of equal values the first win."""
    order = np.argsort(-rows, axis=1, kind="stable")[:, :count]
    result = np.zeros(rows.shape, bool)
    np.put_along_axis(result, order, True, axis=1)
    return result
