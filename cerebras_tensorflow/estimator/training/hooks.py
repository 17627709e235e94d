"""The hooks of every training run: stop, log, save, check the loss."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.estimator.training.checkpoints import newest_whole
from cerebras_tensorflow.estimator.training.prepare import PreparedRun
from cerebras_tensorflow.estimator.training.signals import StopSignals
from cerebras_tensorflow.estimator.training.speed_summaries import SpeedSummaries
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.perf.html.content import SparseShare
from cerebras_tensorflow.perf.step_record import StepRecord
from cerebras_tensorflow.perf.timeline import Timeline

SessionRunHook: Any = tf.compat.v1.train.SessionRunHook


class NanLossError(tf.compat.v1.train.NanLossDuringTrainingError):
    """The loss is no longer finite."""

    def __init__(self, step: int, loss: float, checkpoint: str | None) -> None:
        super().__init__()
        kept = f"The last good checkpoint is {checkpoint}." if checkpoint else "No checkpoint was saved before."
        self._text = (
            f"NaN loss during training: the loss of step {step} is {loss}. {kept} "
            "Lower the learning rate, clip gradients, or look at the data of that step."
        )

    def __str__(self) -> str:
        return self._text


class TrainingHook(SessionRunHook):
    """Checks and logs the loss, counts steps, and ends the run.

    Args:
        run: The run.
        signals: Checked after each step.

    Attributes:
        step: Global step after the last run.
        counted_step: The same, but at most 1 more than before the run. As in tf.estimator, this one ends the run: if a
            train_op raises the step by 2, a run of 2 steps ends at step 4.
        last_step: Global step at which the run ends; None: at the end of the input.
        final_loss: Loss of the last step that ended without an error; None before the first.
        is_exhausted: Whether the input has ended.
        bad_loss: Loss of the last step if it ends the run: NaN, or infinite in a run of a CerebrasEstimator.
        record: Losses and speed of the run.
        timelines: Steps that were traced or profiled.
        sparsity: The sparse weights after the last change of masks.
    """

    def __init__(self, run: PreparedRun, signals: StopSignals) -> None:
        self._run = run
        self._log_every = run.request.settings.log_step_count_steps
        self._signals = signals
        self._first_step = 0
        self._logged_step: int | None = None
        self.step = self.counted_step = 0
        self.last_step = run.last_step
        self.final_loss: np.floating[Any] | None = None
        self.is_exhausted = False
        self.bad_loss: float | None = None
        self.record = StepRecord()
        self.timelines: list[Timeline] = []
        self.sparsity: tuple[SparseShare, ...] = ()
        self._summaries = SpeedSummaries(run.request.work_folder, run.meter) if run.request.is_cerebras else None

    def show_sparsity(self, shares: Sequence[SparseShare]) -> None:
        """Note the sparse weights for the report of the run."""
        self.sparsity = tuple(shares)

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Note where the run starts."""
        self.step = self.counted_step = self._first_step = session.global_step
        if self._run.request.steps is not None:  # a Scaffold's init_fn may have set the step
            self.last_step = self.step + self._run.request.steps
        self._run.meter.start()

    def end(self, session: Any) -> None:
        """Write the summaries to their file."""
        if self._summaries is not None and self._logged_step is not None:
            self._summaries.flush()

    def before_run(self, run_context: Any) -> Any:
        """Ask for the loss, and for the size of a batch that the step reads itself."""
        size = self._run.ops.batch_size
        return tf.compat.v1.train.SessionRunArgs([self._run.model.spec.loss, *([] if size is None else [size])])

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Check and log the loss."""
        loss, *size = (float(value) for value in run_values.results)
        if size:
            self._run.meter.batch_size = int(size[0])
        step = run_context.session.global_step
        self.counted_step = min(step, self.step + 1)
        self.step = step
        if math.isnan(loss) or (self._run.request.is_cerebras and math.isinf(loss)):  # tf.estimator lets inf pass
            self.bad_loss = loss
            return
        meter = self._run.meter
        meter.count_step()
        self.record.add(step, loss, meter.elapsed_s, meter.samples)
        # With gradient accumulation, the global step does not change on every batch.
        if step != self._logged_step and self._is_due(step, step - self._first_step):
            self._log(step, loss)
            self._logged_step = step
            if self._summaries is not None:
                self._summaries.write(step, loss)

    @property
    def is_due_to_end(self) -> bool:
        """Whether the run has taken its last step or received a signal."""
        took_all = self.last_step is not None and self.counted_step >= self.last_step
        return took_all or self._signals.received is not None

    def _is_due(self, step: int, taken: int) -> bool:
        if not self._log_every:
            return False
        early = taken in (1, 2, 10) if self._run.is_streaming else taken == 1
        return early or step % self._log_every == 0 or step == self.last_step

    def _log(self, step: int, loss: float) -> None:
        speed = self._run.meter.recent_speed()
        if self._run.is_streaming:
            run_log.info(
                "global_step = %d, loss = %.6g (%.3g steps/sec, %.4g samples/sec)",
                step, loss, speed.steps_per_s, speed.samples_per_s,
            )  # fmt: skip
        else:
            run_log.info("global step %d: loss = %.6g (%.3g steps/sec)", step, loss, speed.steps_per_s)


class EndHook(SessionRunHook):
    """Ends the run after its last step or a signal, and with an error after a bad loss.

    As in tf.estimator, the caller's hooks see the step before.

    Args:
        run: The run.
        watch: Checks the loss.
    """

    def __init__(self, run: PreparedRun, watch: TrainingHook) -> None:
        self._run = run
        self._watch = watch

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Ask for the end of the run if it is due.

        Raises:
            NanLossError: If the loss is bad.
        """
        if self._watch.bad_loss is not None:
            self._run.saver.wait()
            raise NanLossError(self._watch.step, self._watch.bad_loss, newest_whole(self._run.request.model_dir))
        if self._watch.is_due_to_end:
            run_context.request_stop()


class CheckpointHook(SessionRunHook):
    """Saves at the start, at intervals and at the end of a run.

    Training continues while a file is written, unless listeners, or the hooks of a tf.estimator.Estimator, may read it.

    Args:
        run: The run, with the interval in its settings.
        watch: Checks the loss. A step with a bad loss is not saved.
    """

    def __init__(self, run: PreparedRun, watch: TrainingHook) -> None:
        self._run = run
        self._watch = watch
        self._saver = run.saver
        self._every_steps = run.request.settings.save_checkpoints_steps or 0
        self._every_s = run.request.settings.save_checkpoints_secs or 0
        self._listeners = run.request.listeners
        is_hooked = bool(run.request.hooks or run.model.spec.training_hooks or run.model.spec.training_chief_hooks)
        # Listeners may read the checkpoint. As in tf.estimator, so may the caller's hooks, in the step that saved it.
        self._is_read_at_once = bool(self._listeners) or (is_hooked and not run.request.is_cerebras)
        self._saved_at = time.monotonic()
        self._last_due = 0

    def begin(self) -> None:
        """Tell the listeners that the run begins."""
        for listener in self._listeners:
            listener.begin()

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Save the first values of the run, unless they came from a checkpoint of it."""
        step = session.global_step
        self._last_due = step
        if self._saver.saved_step != step:
            self._save(session, step)
        else:  # tf.estimator saves again when a run resumes, so listeners expect these calls
            for listener in self._listeners:
                listener.before_save(session, step)
                listener.after_save(session, step)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Save if it is time."""
        self._saver.check()
        if self._watch.bad_loss is not None:
            return
        step = run_context.session.global_step
        every = self._every_steps
        by_steps = bool(every) and step - self._last_due >= every
        by_time = bool(self._every_s) and time.monotonic() - self._saved_at >= self._every_s
        if (by_steps or by_time) and self._saver.saved_step != step:
            self._last_due = step
            if self._save(run_context.session, step):
                run_context.request_stop()

    def end(self, session: Any) -> None:
        """Save the last values of the run, and wait for the write."""
        step = session.global_step
        if self._saver.saved_step != step:
            self._save(session, step)
        self._saver.wait()
        for listener in self._listeners:
            listener.end(session, step)

    def _save(self, session: Any, step: int) -> bool:
        """Save one checkpoint; return whether a listener asks the run to stop."""
        with self._run.meter.paused():
            if self._run.is_streaming:
                run_log.info("Saving checkpoint at global step %d", step)
            else:
                run_log.info("Saving checkpoints for %d into %s.", step, self._saver.prefix)
            for listener in self._listeners:
                listener.before_save(session, step)
            self._saver.save(session, step)
            if self._is_read_at_once:
                self._saver.wait()
            wants_stop = False
            for listener in self._listeners:
                wants_stop = bool(listener.after_save(session, step)) or wants_stop
        self._saved_at = time.monotonic()
        return wants_stop
