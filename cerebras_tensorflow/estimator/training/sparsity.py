"""Sparse training: weights that a sparsifier masks are zero after each step, until it chooses again.

A sparsifier is the caller's object, with the protocol of release 1.6. `apply_sparsity(step)` returns whether it chooses
weights at a step. `get_masked_weights(step, weights, sparse_val)` returns the weights, with sparse_val for each masked
one. We pass NaN as sparse_val, since no weight is NaN, and keep the mask as one bit per weight. The sparsifier sees
masked weights as zeros. It sees no dense copy and no gradients.

Each checkpoint has a file with the masks (sparsity_masks.py), and a resumed run continues with them. Checkpoints of
other programs have no such file. Then the zeros of a variable count as masked if their share is close to the share that
the sparsifier would mask.
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
_SHARE_TOLERANCE = 0.05  # between the share of zeros in such a checkpoint and the expected share


class Sparsifier(Protocol):
    """The methods that release 1.6 calls on the object of `train(sparsifier=...)`.

    Optional methods, as in compat/sparsify.py: `take_over(step, kept)` receives the masks as booleans by variable when
    a run resumes. `expected_sparsity(weights)` returns the masked share by variable. Without it, the number
    `sparsity_level` is the share of all variables except embeddings, normalizations and vectors.
    """

    def apply_sparsity(self, step: int) -> bool:
        """Whether to choose weights at a step."""

    def get_masked_weights(
        self, step: int, weights: Mapping[str, np.ndarray], sparse_val: float
    ) -> Mapping[str, np.ndarray]:
        """Return the weights, with sparse_val for each masked one."""


class SparsityHook(SessionRunHook):
    """Calls the sparsifier, and keeps masked weights at zero.

    Args:
        sparsifier: The caller's.
        trainable: Names of the variables that it may mask.
        shapes: Shapes of all variables in checkpoints. With an AdamW-aware sparsifier, the moments of masked weights
            are zero too.
        start: Checkpoint to resume from; None for a new run.
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
        """Restore the masks of a resumed run, and choose if it is time."""
        self._running = session
        self._step = session.global_step
        if self._start is not None:
            self._take_over(self._start)
        if self._sparsifier.apply_sparsity(self._step):
            self._choose(self._step)

    def write_masks(self, checkpoint: str) -> None:
        """Write the masks beside a checkpoint.

        Raises:
            CheckpointError: If it cannot be written.
        """
        sparsity_masks.write(checkpoint, self._kept)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Set masked weights to zero, and choose again if it is time."""
        step = self._session().global_step
        if step == self._step:
            return  # gradient accumulation: no weight has changed
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
            raise CerebrasError(f"the sparsifier returned {unknown[0]}, which is not a trainable variable of the model")
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
        self._log_choice(step, weights)

    def _take_over(self, start: str) -> None:
        """Restore the masks of the checkpoint that the run starts from."""
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
        self._log_choice(self._step, weights)

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

    def _log_choice(self, step: int, weights: Mapping[str, np.ndarray]) -> None:
        taken = sum(weights[name].size - int(np.unpackbits(kept).sum()) for name, kept in self._kept.items())
        total = sum(weight.size for weight in weights.values())
        run_log.info(
            "Sparsity at global step %d: %d of %d weights are zero, in %d of %d variables.",
            step, taken, total, len(self._kept), len(weights),
        )  # fmt: skip
