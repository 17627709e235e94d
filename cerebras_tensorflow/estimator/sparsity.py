"""Sparse training: the weights that a sparsifier takes out are zero after each step, until it chooses anew.

A sparsifier is the caller's object, with the protocol of release 1.6: `apply_sparsity(step)` says whether it chooses at
a step, `get_masked_weights(step, weights, sparse_val)` returns the weights with sparse_val in the place of those that
it takes out. It is asked with NaN, as no weight is NaN, and the choice is kept as one bit a weight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.errors import CerebrasError
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.runtime.session import ProgramSession

SessionRunHook: Any = tf.compat.v1.train.SessionRunHook
DENSE_PARTS = ("embedding", "norm")
"""Parts of the names of variables that sparsifiers leave dense."""


class Sparsifier(Protocol):
    """What release 1.6 calls on the object that `train(sparsifier=...)` takes."""

    def apply_sparsity(self, step: int) -> bool:
        """Whether weights are chosen at a step."""

    def get_masked_weights(
        self, step: int, weights: Mapping[str, np.ndarray], sparse_val: float
    ) -> Mapping[str, np.ndarray]:
        """Return the weights, with sparse_val in the place of what is taken out."""


class SparsityHook(SessionRunHook):
    """Asks the sparsifier, and keeps at zero what it has taken out.

    Args:
        sparsifier: The caller's.
        trainable: Names of the variables that it may choose among.
        shapes: Shapes of all variables of a checkpoint; an AdamW-aware sparsifier's moments are zero with their weight.
        session: Returns the running session.
    """

    def __init__(
        self,
        sparsifier: Sparsifier,
        trainable: list[str],
        shapes: Mapping[str, tuple[int, ...]],
        session: Callable[[], ProgramSession],
    ) -> None:
        self._sparsifier = sparsifier
        self._trainable = trainable
        self._slots: dict[str, list[str]] = {}
        if getattr(sparsifier, "is_AdamW_aware", False):
            self._slots = {
                name: [slot for slot in shapes if slot.startswith(f"{name}/") and shapes[slot] == shapes[name]]
                for name in trainable
            }
        self._session = session
        self._kept: dict[str, np.ndarray] = {}
        self._step = -1

    def after_create_session(self, session: Any, coord: Any) -> None:
        self._step = self._session().global_step
        if self._sparsifier.apply_sparsity(self._step):
            self._choose(self._step)
        elif self._step:
            self._take_over()

    def after_run(self, run_context: Any, run_values: Any) -> None:
        step = self._session().global_step
        if step == self._step:
            return  # a batch that is accumulated changes no weight
        self._step = step
        self._clear()
        if self._sparsifier.apply_sparsity(step):
            self._choose(step)

    def _choose(self, step: int) -> None:
        session = self._session()
        weights = {name: np.array(session.read(name)) for name in self._trainable}
        masked = self._sparsifier.get_masked_weights(step, weights, np.nan)
        unknown = sorted(set(masked) - set(weights))
        if unknown:
            raise CerebrasError(f"the sparsifier returned {unknown[0]}, which is no trainable variable of the model")
        self._kept = {}
        for name, value in masked.items():
            if np.shape(value) != weights[name].shape:
                raise CerebrasError(
                    f"the sparsifier returned {name} in the shape {np.shape(value)}; it is {weights[name].shape}"
                )
            kept = ~np.isnan(value)
            if not kept.all():
                self._keep(name, kept)
                session.load(name, np.where(kept, value, 0).astype(weights[name].dtype))
        self._clear_slots()
        self._tell(step, weights)

    def _take_over(self) -> None:
        """Keep the zeros of a resumed run's weights, where sparsifiers put them."""
        weights = {name: self._session().read(name) for name in self._trainable}
        for name, value in weights.items():
            if value.ndim > 1 and not any(part in name.lower() for part in DENSE_PARTS) and not value.all():
                self._keep(name, value != 0)
        self._tell(self._step, weights)

    def _keep(self, name: str, kept: np.ndarray) -> None:
        self._kept[name] = np.packbits(kept)

    def _clear(self) -> None:
        for name in self._kept:
            self._clear_one(name, name)
        self._clear_slots()

    def _clear_slots(self) -> None:
        for name in self._kept:
            for slot in self._slots.get(name, ()):
                self._clear_one(name, slot)

    def _clear_one(self, name: str, variable: str) -> None:
        session = self._session()
        value = np.array(session.read(variable))
        kept = np.unpackbits(self._kept[name], count=value.size).astype(bool)
        value[~kept.reshape(value.shape)] = 0
        session.load(variable, value)

    def _tell(self, step: int, weights: Mapping[str, np.ndarray]) -> None:
        taken = sum(weights[name].size - int(np.unpackbits(kept).sum()) for name, kept in self._kept.items())
        total = sum(weight.size for weight in weights.values())
        run_log.info(
            "Sparsity at global step %d: %d of %d weights are zero, in %d of %d variables.",
            step, taken, total, len(self._kept), len(weights),
        )  # fmt: skip
