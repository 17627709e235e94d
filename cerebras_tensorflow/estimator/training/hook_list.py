"""The hooks of a training run, in the order in which they are called."""

from __future__ import annotations

import logging
import os
from typing import Any

import tensorflow as tf

from cerebras_tensorflow.config import env
from cerebras_tensorflow.estimator.event_writers import EventFile
from cerebras_tensorflow.estimator.training.hooks import CheckpointHook, EndHook, TrainingHook
from cerebras_tensorflow.estimator.training.prepare import PreparedRun
from cerebras_tensorflow.estimator.training.profiler_hook import ProfilerHook
from cerebras_tensorflow.estimator.training.recording import Recording
from cerebras_tensorflow.estimator.training.sparsity.hook import SparsityHook
from cerebras_tensorflow.estimator.training.trace_hook import TraceHook
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.perf.profile import profiler_settings


def hooks_of(run: PreparedRun, watch: TrainingHook) -> list[Any]:
    """Return our hooks, the spec's chief hooks, the caller's hooks, and the spec's other hooks.

    As in tf.estimator, the caller's hooks run after ours, so they see the checkpoint and the evaluation of their step.

    Raises:
        ValueError: If there are listeners but the run saves no checkpoints.
    """
    request, settings, spec = run.request, run.request.settings, run.model.spec
    hooks: list[Any] = [watch]
    if run.model.sparse:
        hooks.append(SparsityHook(run, watch.show_sparsity))
    trace_step, recording = env.read().trace_step, Recording()
    if trace_step:
        trace = TraceHook(trace_step, os.path.join(request.work_folder, "trace"), recording, watch.timelines.append)
        run.cleanup.callback(trace.close)
        hooks.append(trace)
    profiled = profiler_settings(settings.cs.op_profiler_config)
    if profiled is not None:
        profiler = ProfilerHook(profiled, request.work_folder, recording, watch.timelines.append)
        run.cleanup.callback(profiler.close)
        hooks.append(profiler)
    chief, others = tuple(getattr(spec, "training_chief_hooks", ())), tuple(getattr(spec, "training_hooks", ()))
    own_saves = [
        hook for hook in (*others, *request.hooks, *chief) if isinstance(hook, tf.compat.v1.train.CheckpointSaverHook)
    ]
    if own_saves and not request.is_cerebras:  # as in tf.estimator, the caller's hook saves instead of ours
        own_saves[0]._listeners.extend(request.listeners)  # noqa: SLF001 - no public name for it
    elif request.is_cerebras or settings.save_checkpoints_steps or settings.save_checkpoints_secs:
        hooks.append(CheckpointHook(run, watch))
    elif request.listeners:
        raise ValueError(
            "There should be a CheckpointSaverHook to use saving_listeners. Please set one of the "
            "RunConfig.save_checkpoints_steps or RunConfig.save_checkpoints_secs."
        )
    if settings.save_summary_steps:
        hooks.append(
            tf.compat.v1.train.SummarySaverHook(
                save_steps=settings.save_summary_steps,
                summary_writer=EventFile(request.work_folder),
                summary_op=run.ops.summary,
            )
        )
    if settings.log_step_count_steps:
        hooks.append(
            _QuietStepCounterHook(settings.log_step_count_steps, summary_writer=EventFile(request.work_folder))
        )
    return [*hooks, *chief, *request.hooks, EndHook(run, watch), *others]


class _QuietStepCounterHook(tf.compat.v1.train.StepCounterHook):
    """Writes global_step/sec to the event file only; our own log line has the speed."""

    def _log_and_record(self, elapsed_steps: int, elapsed_time: float, global_step: int) -> None:
        before = run_log.level
        run_log.setLevel(logging.WARNING)
        try:
            super()._log_and_record(elapsed_steps, elapsed_time, global_step)
        finally:
            run_log.setLevel(before)
