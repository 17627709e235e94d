"""Hooks that end a training run early, based on evaluation metrics or on a user's function."""

from __future__ import annotations

import operator
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from cerebras_tensorflow.estimator.training.checkpoints import step_saved_by_others
from cerebras_tensorflow.locations import object_location
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.saver.model_dir import uploads

STOP_VARIABLE = "signal_early_stopping/STOP"
"""Name of the variable that says whether to stop. Checkpoints of earlier versions lack it."""


def make_early_stopping_hook(
    estimator: Any,
    should_stop_fn: Callable[[], bool],
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> Any:
    """Return a hook that stops the run when a function returns True. In a cluster, the chief stops all workers.

    Args:
        estimator: The estimator.
        should_stop_fn: Function without arguments that returns whether to stop.
        run_every_secs: Seconds between two calls; give this or run_every_steps.
        run_every_steps: Steps between two calls.

    Raises:
        TypeError: If estimator is not an estimator, or should_stop_fn is not callable.
        ValueError: If both or neither of the intervals are given.
    """
    if not hasattr(estimator, "model_dir") or not hasattr(estimator, "train"):
        raise TypeError(f"`estimator` must have type `tf.estimator.Estimator`. Got: {type(estimator)}")
    if not callable(should_stop_fn):
        raise TypeError(f"`should_stop_fn` must be callable. Got: {should_stop_fn}")
    if run_every_secs is not None and run_every_steps is not None:
        raise ValueError("Only one of `run_every_secs` and `run_every_steps` must be set.")
    if run_every_secs is None and run_every_steps is None:
        raise ValueError("Either every_secs or every_steps should be provided.")
    if getattr(estimator.config, "is_chief", True):
        return _StopOnPredicateHook(should_stop_fn, run_every_secs, run_every_steps)
    return _CheckForStoppingHook()


def make_stop_at_checkpoint_step_hook(
    estimator: Any,
    last_step: int,
    wait_after_file_check_secs: int = 30,
) -> Any:
    """Return a hook that ends a run at a step. A cluster's worker also waits for the chief's checkpoint of that step.

    Args:
        estimator: The estimator.
        last_step: Global step.
        wait_after_file_check_secs: Seconds between a worker's checks for the checkpoint.
    """
    if getattr(estimator.config, "is_chief", True):
        return tf.compat.v1.train.StopAtStepHook(last_step=last_step)
    return _StopAtCheckpointStepHook(estimator.model_dir, last_step, wait_after_file_check_secs)


# TensorFlow's signatures.
def stop_if_higher_hook(
    estimator: Any, metric_name: str, threshold: float, eval_dir: str | None = None, min_steps: int = 0,
    run_every_secs: float | None = 60, run_every_steps: int | None = None,
) -> Any:  # fmt: skip
    """Return a hook that stops once a metric of an evaluation is above a threshold.

    Args:
        estimator: The estimator.
        metric_name: Name of the metric.
        threshold: The threshold.
        eval_dir: Folder of the event files of evaluations; by default that of the estimator.
        min_steps: Evaluations before this global step do not count.
        run_every_secs: Seconds between two looks at the event files; give this or run_every_steps.
        run_every_steps: Steps between two looks.
    """
    should_stop = _crossed(estimator, metric_name, threshold, eval_dir, min_steps, operator.gt)
    return make_early_stopping_hook(estimator, should_stop, run_every_secs, run_every_steps)


def stop_if_lower_hook(
    estimator: Any, metric_name: str, threshold: float, eval_dir: str | None = None, min_steps: int = 0,
    run_every_secs: float | None = 60, run_every_steps: int | None = None,
) -> Any:  # fmt: skip
    """Return a hook that stops once a metric is below a threshold. The arguments are those of stop_if_higher_hook."""
    should_stop = _crossed(estimator, metric_name, threshold, eval_dir, min_steps, operator.lt)
    return make_early_stopping_hook(estimator, should_stop, run_every_secs, run_every_steps)


def stop_if_no_increase_hook(
    estimator: Any, metric_name: str, max_steps_without_increase: int, eval_dir: str | None = None, min_steps: int = 0,
    run_every_secs: float | None = 60, run_every_steps: int | None = None,
) -> Any:  # fmt: skip
    """Return a hook that stops when a metric has not increased within a number of steps.

    The other arguments are those of stop_if_higher_hook.
    """
    should_stop = _stalled(estimator, metric_name, max_steps_without_increase, eval_dir, min_steps, operator.gt)
    return make_early_stopping_hook(estimator, should_stop, run_every_secs, run_every_steps)


def stop_if_no_decrease_hook(
    estimator: Any, metric_name: str, max_steps_without_decrease: int, eval_dir: str | None = None, min_steps: int = 0,
    run_every_secs: float | None = 60, run_every_steps: int | None = None,
) -> Any:  # fmt: skip
    """Return a hook that stops when a metric has not decreased within a number of steps.

    The other arguments are those of stop_if_higher_hook.
    """
    should_stop = _stalled(estimator, metric_name, max_steps_without_decrease, eval_dir, min_steps, operator.lt)
    return make_early_stopping_hook(estimator, should_stop, run_every_secs, run_every_steps)


def read_eval_metrics(eval_dir: str, pattern: str = "*tfevents*") -> dict[int, dict[str, float]]:
    """Return step -> metrics from the event files of evaluations, sorted by step.

    The rest of a damaged file is left out, with a warning.

    Args:
        eval_dir: Their folder or URL.
        pattern: Pattern of their names.
    """
    if object_location(eval_dir) is not None:
        with tempfile.TemporaryDirectory() as folder:
            uploads.download(eval_dir, folder, pattern)
            return read_eval_metrics(folder, pattern)
    metrics_by_step: dict[int, dict[str, float]] = {}
    for path in sorted(tf.io.gfile.glob(os.path.join(eval_dir, pattern))):
        try:
            _add_events(path, metrics_by_step)
        except tf.errors.DataLossError as error:
            run_log.warning("Skipping rest of the file due to encountering data corruption error; file path: %s; %s",
                            path, error.message)  # fmt: skip
    return dict(sorted(metrics_by_step.items()))


def _add_events(path: str, metrics_by_step: dict[int, dict[str, float]]) -> None:
    for event in tf.compat.v1.train.summary_iterator(path):
        values = {value.tag: value.simple_value for value in event.summary.value if value.HasField("simple_value")}
        if values:
            metrics_by_step.setdefault(event.step, {}).update(values)


def _crossed(
    estimator: Any, metric: str, threshold: float, eval_dir: str | None, min_steps: int, beyond: Callable[..., bool]
) -> Callable[[], bool]:
    how = "greater" if beyond is operator.gt else "less"

    def should_stop() -> bool:
        for step, value in _values(estimator, metric, eval_dir, min_steps):
            if beyond(value, threshold):
                run_log.info(
                    'At step %s, metric "%s" has value %s which is %s than the configured threshold (%s) for early '
                    "stopping.",
                    step, metric, value, how, threshold,
                )  # fmt: skip
                return True
        return False

    return should_stop


def _stalled(
    estimator: Any, metric: str, max_steps: int, eval_dir: str | None, min_steps: int, better: Callable[..., bool]
) -> Callable[[], bool]:
    def should_stop() -> bool:
        best: float | None = None
        best_step = 0
        for step, value in _values(estimator, metric, eval_dir, min_steps):
            if best is None or better(value, best):
                best, best_step = value, step
            if step - best_step >= max_steps:
                run_log.info('No improvement of metric "%s" for %s steps: best %s at step %s, now at %s.',
                             metric, step - best_step, best, best_step, step)  # fmt: skip
                return True
        return False

    return should_stop


def _values(estimator: Any, metric: str, eval_dir: str | None, min_steps: int) -> list[tuple[int, float]]:
    folder = eval_dir if eval_dir is not None else estimator.eval_dir()
    metrics_by_step = {step: metrics for step, metrics in read_eval_metrics(folder).items() if step >= min_steps}
    for step, metrics in metrics_by_step.items():
        if metric not in metrics:
            raise KeyError(
                f"{metric}: the evaluation at step {step} in {folder} has no such metric; it has "
                f"{', '.join(sorted(metrics))}"
            )
    return [(step, metrics[metric]) for step, metrics in metrics_by_step.items()]


class _StopOnPredicateHook(tf.compat.v1.train.SessionRunHook):
    """Calls a function at an interval. If it returns True, sets the stop variable and ends the run.

    Args:
        should_stop_fn: The function.
        run_every_secs: Seconds between two calls, or None.
        run_every_steps: Steps between two calls, or None.

    Raises:
        TypeError: If the function is not callable.
    """

    def __init__(
        self,
        should_stop_fn: Callable[[], bool],
        run_every_secs: float | None = 60,
        run_every_steps: int | None = None,
    ) -> None:
        if not callable(should_stop_fn):
            raise TypeError(f"`should_stop_fn` must be callable. Got: {should_stop_fn}")
        self._should_stop_fn = should_stop_fn
        self._timer = tf.compat.v1.train.SecondOrStepTimer(every_secs=run_every_secs, every_steps=run_every_steps)

    def begin(self) -> None:
        self._global_step = tf.compat.v1.train.get_global_step()
        self._stop = _get_or_create_stop_var().assign(True)
        self._timer.reset()

    def before_run(self, run_context: Any) -> Any:
        return tf.compat.v1.train.SessionRunArgs(self._global_step)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        step = int(run_values.results)
        if self._timer.should_trigger_for_step(step):
            self._timer.update_last_triggered_step(step)
            if self._should_stop_fn():
                run_log.info("Requesting early stopping at global step %d", step)
                run_context.session.run(self._stop)
                run_context.request_stop()


class _CheckForStoppingHook(tf.compat.v1.train.SessionRunHook):
    """Hook of a cluster's worker: ends the run when the chief has set the stop variable."""

    def begin(self) -> None:
        self._is_stopped = _get_or_create_stop_var()

    def before_run(self, run_context: Any) -> Any:
        return tf.compat.v1.train.SessionRunArgs(self._is_stopped)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if run_values.results:
            run_log.info("Early stopping requested, suspending run.")
            run_context.request_stop()


def _get_or_create_stop_var() -> Any:
    """Return the variable that says whether to stop. Checkpoints hold it, as in tf.estimator.

    All tasks of a cluster share it. The chief sets it; the workers read it.
    """
    scope, name = STOP_VARIABLE.split("/")
    with tf.compat.v1.variable_scope(scope, reuse=tf.compat.v1.AUTO_REUSE):
        return tf.compat.v1.get_variable(
            name, [], tf.bool, tf.compat.v1.zeros_initializer(), trainable=False, use_resource=True
        )


class _StopAtCheckpointStepHook(tf.compat.v1.train.SessionRunHook):
    """Hook of a cluster's worker: stops when the chief has saved a given step."""

    def __init__(self, model_dir: str, last_step: int, wait_s: float) -> None:
        self._model_dir = model_dir
        self._last_step = last_step
        self._wait_s = wait_s

    def begin(self) -> None:
        self._global_step = tf.compat.v1.train.get_global_step()

    def before_run(self, run_context: Any) -> Any:
        return tf.compat.v1.train.SessionRunArgs(self._global_step)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if run_values.results + 1 < self._last_step:
            return
        if step_saved_by_others(self._model_dir) >= self._last_step:
            run_context.request_stop()
        else:
            time.sleep(self._wait_s)
