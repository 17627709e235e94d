"""Sparse training: makes the first masks, and changes them between two steps where the schedule says so.

In the step itself, the compiled graph keeps masked weights at zero (model/sparse_weights.py). Masks are variables
`<weight>_mask` of the run, so checkpoints hold them and a resumed run continues with them. A run that starts from a
checkpoint without masks makes them. If about as many weights are already zero as the target asks for, these are the
masked ones. The checkpoint of step 0 that weight streaming writes before the session has no masks, so a run that
dies before it makes them makes them when it starts again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.estimator.event_writers import EventFile
from cerebras_tensorflow.estimator.model.sparse_weights import SparseWeight
from cerebras_tensorflow.estimator.training.prepare import PreparedRun
from cerebras_tensorflow.estimator.training.sparsity.caller_sparsifier import CallerSparsifier
from cerebras_tensorflow.estimator.training.sparsity.kept_gradients import KeptGradients
from cerebras_tensorflow.estimator.training.sparsity.report import SparsityReport
from cerebras_tensorflow.estimator.training.warm_start import masks_of_warm_start
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.perf.html.content import SparseShare
from cerebras_tensorflow.runtime.session import ProgramSession
from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint
from cerebras_tensorflow.sparsity.algorithms import DynamicSparsityAlgorithm
from cerebras_tensorflow.sparsity.selection import Mask

SessionRunHook: Any = tf.compat.v1.train.SessionRunHook
_SHARE_TOLERANCE = 0.1  # between zeros of a checkpoint without masks and the target, relative to what is rarer


class SparsityHook(SessionRunHook):
    """Makes and changes the masks of a run.

    Args:
        run: The run. Its model has sparse weights, or the caller's sparsifier chooses them.
        show: Receives the sparse weights after each change of masks.
    """

    def __init__(self, run: PreparedRun, show: Callable[[Sequence[SparseShare]], None] | None = None) -> None:
        request = run.request
        self._run = run
        self._weights: Mapping[str, SparseWeight] = {weight.name: weight for weight in run.model.sparse}
        self._caller = request.sparsity if isinstance(request.sparsity, CallerSparsifier) else None
        self._seed = request.settings.tf_random_seed or 0
        events = EventFile(request.work_folder) if request.settings.save_summary_steps else None
        self._report = SparsityReport(os.path.join(request.work_folder, "sparsity.json"), events, show)
        self._step = -1
        taking = {name: weight for name, weight in self._weights.items() if weight.gradients}
        self._gradients = KeptGradients(taking, request.work_folder, run.compiled.program.micro_batches is None)
        run.cleanup.callback(self._gradients.forget)
        self._warn_of_untrained()

    def begin(self) -> None:
        """Add the ops that take gradients."""
        self._gradients.add_ops()

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Make the first masks, or continue with those of a checkpoint."""
        self._step = session.global_step
        saved = self._saved_masks()
        for weight in self._weights.values():
            if weight.mask not in saved:
                self._start(session, weight)
            elif self._run.start is None or self._step == 0:  # the warm start's weights may not be masked yet
                self._set(session, weight, session.read(weight.mask), session.read(weight.name))
            else:
                self._report.count(weight, session.read(weight.mask), self._step)
        if self._caller is not None:
            restored = {
                name: session.read(weight.mask) for name, weight in self._weights.items() if weight.mask in saved
            }
            if restored:
                self._caller.take_over(self._step, restored)
            if self._caller.apply_sparsity(self._step):
                self._ask_caller(session, self._step)
        self._report.write(self._step)
        self._run.saver.forget_initial()

    def before_run(self, run_context: Any) -> Any:
        """Ask for the gradients that the next update of masks needs."""
        step = run_context.session.global_step + 1
        due = [name for name, weight in self._weights.items() if weight.gradients and self._is_due(weight, step)]
        wanted = self._gradients.fetches(due)
        return tf.compat.v1.train.SessionRunArgs(wanted) if wanted else None

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Change the masks if it is time."""
        session = run_context.session
        step = session.global_step
        if step == self._step:
            return  # gradient accumulation, or a step that loss scaling has skipped: no weight has changed
        self._step = step
        due = [weight for weight in self._weights.values() if self._is_due(weight, step)]
        self._gradients.note(run_values.results or {})
        for weight in due:
            self._update(session, weight, step)
        self._gradients.forget()
        if self._caller is not None and self._caller.apply_sparsity(step):
            self._ask_caller(session, step)
        elif not due:
            return
        self._report.write(step)

    def _is_due(self, weight: SparseWeight, step: int) -> bool:
        algorithm = weight.algorithm
        return weight.is_trained and isinstance(algorithm, DynamicSparsityAlgorithm) and step in algorithm.update_steps

    def _warn_of_untrained(self) -> None:
        """Name the weights whose masks would change if the loss depended on them."""
        weights = [one for one in self._weights.values() if isinstance(one.algorithm, DynamicSparsityAlgorithm)]
        names = [one.name for one in weights if not one.is_trained]
        if names:
            run_log.warning("Sparsity: the loss does not depend on %s. Masks of these weights stay.", ", ".join(names))

    def _saved_masks(self) -> set[str]:
        """Return the masks that the run has loaded from a checkpoint."""
        run = self._run
        if run.start is None:
            settings = run.request.warm_start
            return masks_of_warm_start(run.model, settings) if settings is not None else set()
        with open_checkpoint(run.start) as reader:
            return {weight.mask for weight in self._weights.values() if weight.mask in reader}

    def _start(self, session: ProgramSession, weight: SparseWeight) -> None:
        """Make the first mask of a weight."""
        value = session.read(weight.name)
        mask = self._zeros_of(weight, value)
        algorithm, step = weight.algorithm, self._step
        if mask is None and algorithm is not None:
            update_steps = algorithm.update_steps
            if step in update_steps or update_steps.num_before(step) > 0:
                algorithm.check_end(weight.name, step)
                mask = algorithm.first_mask(weight.name, value, self._seed, step)
        if mask is None:
            mask = np.ones(weight.shape, bool)
        self._set(session, weight, mask, value)

    def _zeros_of(self, weight: SparseWeight, value: np.ndarray) -> Mask | None:
        """Return the mask of a sparse checkpoint without masks; None if it is dense.

        A weight of zeros only is dense: its initializer made them.
        """
        if self._run.start is None and self._run.request.warm_start is None:
            return None
        target = self._caller.target(weight) if self._caller else float(weight.algorithm.target(self._step))  # type: ignore[union-attr]
        return zeros_as_mask(value, target)

    def _update(self, session: ProgramSession, weight: SparseWeight, step: int) -> None:
        assert isinstance(weight.algorithm, DynamicSparsityAlgorithm)
        weight.algorithm.check_end(weight.name, step)  # `prepare` has not, if the run has no last step
        gradient = None
        if weight.gradients:
            gradient = self._gradients.read(weight.name)
            if gradient is None:
                return  # the step was skipped when the gradient was fetched
            if not np.isfinite(gradient).all():
                run_log.warning(
                    "Sparsity at global step %d: the gradient of %s is not finite, so its mask stays.",
                    step,
                    weight.name,
                )
                return
        mask = session.read(weight.mask)
        value = session.read(weight.name)
        new = weight.algorithm.next_mask(weight.name, value, mask, step, gradient, self._seed)
        self._set(session, weight, new, value)

    def _ask_caller(self, session: ProgramSession, step: int) -> None:
        """Let the caller's object choose the masks of all its weights."""
        assert self._caller is not None
        values = {name: np.array(session.read(name)) for name in self._weights}
        for name, mask in self._caller.masks(step, values).items():
            self._set(session, self._weights[name], mask, values[name])

    def _set(self, session: ProgramSession, weight: SparseWeight, mask: Mask, value: np.ndarray) -> None:
        """Set a mask, and set to zero what it masks of the weight and its slots."""
        session.load(weight.mask, mask)
        for name in (weight.name, *weight.slots):
            old = value if name == weight.name else session.read(name)
            if np.any(old[~mask]):
                session.load(name, np.where(mask, old, np.zeros((), old.dtype)))
        self._report.count(weight, mask, self._step)


def zeros_as_mask(value: np.ndarray, target: float) -> Mask | None:
    """Return the mask of a weight that has about as many zeros as the target asks for; None if it has not.

    Args:
        value: The weight.
        target: Share of zeros, from 0 to 1.
    """
    num_zeros = value.size - np.count_nonzero(value)
    allowed = max(1.0, _SHARE_TOLERANCE * min(target, 1 - target) * value.size)
    is_sparse = target > 0 and 0 < num_zeros < value.size and abs(num_zeros - target * value.size) <= allowed
    return np.asarray(value != 0) if is_sparse else None
