"""Sparse training: the weights that a sparsifier takes out are zero after each step, until it chooses anew.

A sparsifier is the caller's object, with the protocol of release 1.6: `apply_sparsity(step)` says whether it chooses at
a step, `get_masked_weights(step, weights, sparse_val)` returns the weights with sparse_val in the place of those that
it takes out. It is asked with NaN, as no weight is NaN, and the choice is kept as one bit a weight. What it has taken
out is given back to it as zeros: it sees no dense copy, nor gradients.

The choice is saved beside each checkpoint (sparsity_masks.py), and a resumed run goes on with it. A checkpoint of
another origin has no such file: there the zeros of a variable count as taken out where they are about as many as the
sparsifier would take.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.errors import CerebrasError
from cerebras_tensorflow.estimator.training import sparsity_masks
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.runtime.session import ProgramSession

SessionRunHook: Any = tf.compat.v1.train.SessionRunHook
DENSE_PARTS = ("embedding", "norm")
"""Parts of the names of variables that sparsifiers leave dense."""
_SHARE_TOLERANCE = 0.05  # between the zeros of a foreign checkpoint and the share that is asked for


class Sparsifier(Protocol):
    """What release 1.6 calls on the object that `train(sparsifier=...)` takes.

    It may have more, which ours in compat/sparsify.py have: `take_over(step, kept)`, told at the start of a resumed run
    with booleans by variable; and `expected_sparsity(weights)`, the share by variable that it takes out. Instead of the
    latter, a number `sparsity_level` counts for all variables but embeddings, normalizations and vectors.
    """

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
        start: Checkpoint that the run goes on from; None for a new run.
    """

    def __init__(
        self,
        sparsifier: Sparsifier,
        trainable: list[str],
        shapes: Mapping[str, tuple[int, ...]],
        start: str | None,
    ) -> None:
        self._sparsifier = sparsifier
        self._trainable = trainable
        self._slots: dict[str, list[str]] = {}
        if getattr(sparsifier, "is_AdamW_aware", False):
            self._slots = {
                name: [slot for slot in shapes if slot.startswith(f"{name}/") and shapes[slot] == shapes[name]]
                for name in trainable
            }
        self._running: ProgramSession | None = None
        self._start = start
        self._kept: dict[str, np.ndarray] = {}
        self._step = -1

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Go on with the last choice, or choose."""
        self._running = session
        self._step = session.global_step
        if self._start is not None:
            self._take_over(self._start)
        if self._sparsifier.apply_sparsity(self._step):
            self._choose(self._step)

    def write_masks(self, checkpoint: str) -> None:
        """Write what is taken out beside a checkpoint.

        Raises:
            CheckpointError: If it cannot be written.
        """
        sparsity_masks.write(checkpoint, self._kept)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Keep at zero what is taken out, and choose anew when it is time."""
        step = self._session().global_step
        if step == self._step:
            return  # a batch that is accumulated changes no weight
        self._step = step
        self._clear()
        if self._sparsifier.apply_sparsity(step):
            self._choose(step)

    def _session(self) -> ProgramSession:
        assert self._running is not None
        return self._running

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

    def _take_over(self, start: str) -> None:
        """Go on with what was taken out in the checkpoint that the run starts from."""
        weights = {name: self._session().read(name) for name in self._trainable}
        kept = sparsity_masks.read(start, {name: weight.size for name, weight in weights.items()})
        if kept is None:
            self._take_zeros(weights)
        else:
            self._kept = kept
        self._clear()
        tell_sparsifier = getattr(self._sparsifier, "take_over", None)
        if tell_sparsifier is not None:
            tell_sparsifier(self._step, {name: self._kept_of(name, weights[name].shape) for name in self._kept})
        self._tell(self._step, weights)

    def _take_zeros(self, weights: Mapping[str, np.ndarray]) -> None:
        for name, expected in self._expected_sparsity(weights).items():
            share = 1 - np.count_nonzero(weights[name]) / max(1, weights[name].size)
            if expected > 0 < share and abs(share - expected) <= _SHARE_TOLERANCE:
                self._keep(name, weights[name] != 0)

    def _expected_sparsity(self, weights: Mapping[str, np.ndarray]) -> Mapping[str, float]:
        expected = getattr(self._sparsifier, "expected_sparsity", None)
        if expected is not None:
            shares: Mapping[str, float] = expected(weights)
            return shares
        level = getattr(self._sparsifier, "sparsity_level", None)
        if not isinstance(level, int | float):
            return {}
        dense = {name for name in weights if any(part in name.lower() for part in DENSE_PARTS)}
        return {name: level for name, weight in weights.items() if weight.ndim > 1 and name not in dense}

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
        value[~self._kept_of(name, value.shape)] = 0
        session.load(variable, value)

    def _kept_of(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        bits = np.unpackbits(self._kept[name], count=int(np.prod(shape)))
        return bits.astype(bool).reshape(shape)

    def _tell(self, step: int, weights: Mapping[str, np.ndarray]) -> None:
        taken = sum(weights[name].size - int(np.unpackbits(kept).sum()) for name, kept in self._kept.items())
        total = sum(weight.size for weight in weights.values())
        run_log.info(
            "Sparsity at global step %d: %d of %d weights are zero, in %d of %d variables.",
            step, taken, total, len(self._kept), len(weights),
        )  # fmt: skip
