"""The hooks of every training run of ours: stop, log, save, watch the loss."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from cerebras_tensorflow.config.env import WEIGHT_STREAMING
from cerebras_tensorflow.estimator.training.checkpoints import CheckpointSaver
from cerebras_tensorflow.estimator.training.signals import StopSignals
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.perf.meter import Meter
from cerebras_tensorflow.runtime.session import ProgramSession

SessionRunHook: Any = tf.compat.v1.train.SessionRunHook


class NanLossError(tf.compat.v1.train.NanLossDuringTrainingError):
    """The loss is not finite any more."""

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
    """Watches the loss, counts, logs and ends the run.

    Args:
        loss: The loss tensor.
        last_step: Global step at which the run ends; None: when the input does.
        log_every: Steps between log lines; None: no lines.
        mode: Execution mode; decides the form of the lines.
        meter: Takes what was measured.
        session: Returns the running session.
        signals: Asked after each step.
        newest_checkpoint: Returns the newest checkpoint, for the error on a bad loss.
    """

    def __init__(
        self,
        loss: Any,
        last_step: int | None,
        log_every: int | None,
        mode: str,
        meter: Meter,
        session: Callable[[], ProgramSession],
        signals: StopSignals,
        newest_checkpoint: Callable[[], str | None],
    ) -> None:
        self._loss = loss
        self._last_step = last_step
        self._log_every = log_every
        self._mode = mode
        self._meter = meter
        self._session = session
        self._signals = signals
        self._newest_checkpoint = newest_checkpoint
        self._first_step: int | None = None
        self._logged_step: int | None = None
        self.final_loss: float | None = None

    def after_create_session(self, session: Any, coord: Any) -> None:
        self._first_step = self._session().global_step
        self._meter.start()

    def before_run(self, run_context: Any) -> Any:
        return tf.compat.v1.train.SessionRunArgs(self._loss)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        loss = float(run_values.results)
        step = self._session().global_step
        if not math.isfinite(loss):
            raise NanLossError(step, loss, self._newest_checkpoint())
        self.final_loss = loss
        self._meter.count_step()
        assert self._first_step is not None
        # Batches that are accumulated leave the step where it is.
        if self._log_every and step != self._logged_step and self._is_due(step, step - self._first_step):
            self._log(step, loss)
            self._logged_step = step
        if (self._last_step is not None and step >= self._last_step) or self._signals.received is not None:
            run_context.request_stop()

    def _is_due(self, step: int, taken: int) -> bool:
        assert self._log_every is not None
        early = taken in (1, 2, 10) if self._mode == WEIGHT_STREAMING else taken == 1
        return early or step % self._log_every == 0 or step == self._last_step

    def _log(self, step: int, loss: float) -> None:
        speed = self._meter.recent_speed()
        if self._mode == WEIGHT_STREAMING:
            run_log.info(
                "global_step = %d, loss = %.6g (%.3g steps/sec, %.4g samples/sec)",
                step, loss, speed.steps_per_s, speed.samples_per_s,
            )  # fmt: skip
        else:
            run_log.info("global step %d: loss = %.6g (%.3g steps/sec)", step, loss, speed.steps_per_s)


class CheckpointHook(SessionRunHook):
    """Saves at the start, at the interval and at the end of a run; training goes on while a file is written.

    Args:
        saver: Writes the checkpoints.
        every_steps, every_s: The interval; at most one is not 0.
        listeners: CheckpointSaverListeners.
        mode: Execution mode; decides the form of the lines.
        session: Returns the running session.
        meter: Time spent saving does not count as training.
    """

    def __init__(
        self,
        saver: CheckpointSaver,
        every_steps: int,
        every_s: float,
        listeners: Sequence[Any],
        mode: str,
        session: Callable[[], ProgramSession],
        meter: Meter,
    ) -> None:
        self._saver = saver
        self._every_steps = every_steps
        self._every_s = every_s
        self._listeners = listeners
        self._mode = mode
        self._session = session
        self._meter = meter
        self._saved_at = time.monotonic()
        self._last_due = 0

    def begin(self) -> None:
        for listener in self._listeners:
            listener.begin()

    def after_create_session(self, session: Any, coord: Any) -> None:
        step = self._session().global_step
        self._last_due = step
        if self._saver.saved_step != step:
            self._save(session, step)
        else:  # listeners hear of the checkpoint that a resumed run starts with, which tf.estimator writes again
            for listener in self._listeners:
                listener.before_save(session, step)
                listener.after_save(session, step)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._saver.check()
        step = self._session().global_step
        every = self._every_steps
        by_steps = bool(every) and step // every > self._last_due // every
        by_time = bool(self._every_s) and time.monotonic() - self._saved_at >= self._every_s
        if (by_steps or by_time) and self._saver.saved_step != step:
            self._last_due = step
            if self._save(run_context.session, step):
                run_context.request_stop()

    def end(self, session: Any) -> None:
        step = self._session().global_step
        if self._saver.saved_step != step:
            self._save(session, step)
        self._saver.wait()
        for listener in self._listeners:
            listener.end(session, step)

    def _save(self, session: Any, step: int) -> bool:
        """Save one checkpoint; return whether a listener asks the run to stop."""
        with self._meter.paused():
            if self._mode == WEIGHT_STREAMING:
                run_log.info("Saving checkpoint at global step %d", step)
            else:
                run_log.info("Saving checkpoints for %d into %s.", step, self._saver.prefix)
            for listener in self._listeners:
                listener.before_save(session, step)
            self._saver.save(self._session(), step)
            if self._listeners:
                self._saver.wait()  # they may read the checkpoint
            wants_stop = False
            for listener in self._listeners:
                wants_stop = bool(listener.after_save(session, step)) or wants_stop
        self._saved_at = time.monotonic()
        return wants_stop
