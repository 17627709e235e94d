"""The object of `train(sparsifier=...)` with the protocol of release 1.6, as a choice of sparse weights.

`apply_sparsity(step)` returns whether the object chooses weights at a step. `get_masked_weights(step, weights,
sparse_val)` returns the weights, with sparse_val for each masked one. We pass NaN as sparse_val, since no weight is
NaN. The object sees masked weights as zeros. It sees no dense copy and no gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from cerebras_tensorflow.errors import CerebrasError, SettingsError
from cerebras_tensorflow.estimator.model.sparse_weights import SparseWeight
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.sparsity.algorithms import SparsityAlgorithm
from cerebras_tensorflow.sparsity.configure import Group, SparseGroups, configure, first_names, is_sparse_by_default
from cerebras_tensorflow.sparsity.selection import Mask


class Sparsifier(Protocol):
    """The methods that release 1.6 calls on the object of `train(sparsifier=...)`.

    Optional methods, as in compat/sparsify.py: `should_sparsify_weight(name, weight)`: whether a weight may become
    sparse; default: all may. `take_over(step, kept)` receives the masks by variable when a run resumes.
    `expected_sparsity(weights)` returns the masked share by variable. Without it, the number `sparsity_level` is that
    share.
    """

    def apply_sparsity(self, step: int) -> bool:
        """Whether to choose weights at a step."""

    def get_masked_weights(
        self, step: int, weights: Mapping[str, np.ndarray], sparse_val: float
    ) -> Mapping[str, np.ndarray]:
        """Return the weights, with sparse_val for each masked one."""


class CallerSparsifier:
    """Lets a caller's object choose the masks.

    Args:
        sparsifier: The object.
    """

    def __init__(self, sparsifier: Sparsifier) -> None:
        self._sparsifier = sparsifier

    def takes(self, name: str, shape: Sequence[int]) -> bool:
        """Whether the object may mask a weight."""
        ask = getattr(self._sparsifier, "should_sparsify_weight", None)
        return ask is None or bool(ask(name, np.broadcast_to(np.float32(0), tuple(shape))))

    def choose(self, shapes: Mapping[str, tuple[int, ...]]) -> Mapping[str, None]:
        """Return the weights that it may mask.

        Raises:
            SettingsError: If there is none.
        """
        taken = {name: None for name, shape in shapes.items() if self.takes(name, shape)}
        if not taken:
            raise SettingsError(
                "the sparsifier takes no weight of the model, so nothing would be sparse: its should_sparsify_weight "
                f"returns False for each. The weights are {first_names(shapes)}."
            )
        return taken

    def apply_sparsity(self, step: int) -> bool:
        """Whether the object chooses at a step."""
        return self._sparsifier.apply_sparsity(step)

    def take_over(self, step: int, masks: Mapping[str, Mask]) -> None:
        """Give the masks of a resumed run to the object."""
        tell = getattr(self._sparsifier, "take_over", None)
        if tell is not None:
            tell(step, dict(masks))

    def target(self, weight: SparseWeight) -> float:
        """Return the share of a weight that the object masks; 0 if it does not say."""
        expected = getattr(self._sparsifier, "expected_sparsity", None)
        if expected is not None:
            return float(expected({weight.name: np.broadcast_to(np.float32(0), weight.shape)}).get(weight.name, 0))
        level = getattr(self._sparsifier, "sparsity_level", None)
        is_usual = isinstance(level, int | float) and is_sparse_by_default(weight.name, weight.shape)
        return float(level) if is_usual and level is not None else 0.0

    def masks(self, step: int, weights: Mapping[str, np.ndarray]) -> dict[str, Mask]:
        """Ask for the masks of a step.

        Raises:
            CerebrasError: If it returns a variable that is not a weight of the model, or one of another shape.
        """
        masked = self._sparsifier.get_masked_weights(step, dict(weights), np.nan)
        unknown = sorted(set(masked) - set(weights))
        if unknown:
            raise CerebrasError(f"the sparsifier returned {unknown[0]}, which is not a trainable variable of the model")
        result = {name: np.ones(value.shape, bool) for name, value in weights.items()}
        for name, value in masked.items():
            if np.shape(value) != weights[name].shape:
                raise CerebrasError(
                    f"the sparsifier returned {name} in the shape {np.shape(value)}; it is {weights[name].shape}"
                )
            result[name] = ~np.isnan(value)
        return result


def choice_of(params: Any, sparsifier: Any) -> SparseGroups | CallerSparsifier | None:
    """Return the sparse weights of a run; None: all are dense.

    Args:
        params: The estimator's. Section `sparsity` counts unless there is a sparsifier.
        sparsifier: The argument of train: what section `sparsity` may be, an algorithm, or an object with the protocol
            of release 1.6.

    Raises:
        SettingsError: If a key or a value is unknown or out of range.
    """
    section = params.get("sparsity") if isinstance(params, Mapping) else None
    if sparsifier is None:
        return configure(section)
    if section is not None:
        run_log.info("Section sparsity of the params is not used: train has a sparsifier.")
    if hasattr(sparsifier, "get_masked_weights") and hasattr(sparsifier, "apply_sparsity"):
        return CallerSparsifier(sparsifier)
    if not isinstance(sparsifier, (int, float, Mapping, list, tuple, Group, SparseGroups, SparsityAlgorithm)):
        raise SettingsError(
            f"sparsifier is {sparsifier!r}; expected a section `sparsity`, an algorithm of "
            "cerebras_tensorflow.sparsity, or an object with apply_sparsity and get_masked_weights"
        )
    return configure(sparsifier)
