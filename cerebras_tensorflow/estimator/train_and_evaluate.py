"""Training with evaluations in between, and the exports that follow them."""

from __future__ import annotations

import os
from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import tensorflow as tf

from cerebras_tensorflow.config import env
from cerebras_tensorflow.estimator.estimator import CerebrasEstimator
from cerebras_tensorflow.estimator.exporters import Exporter
from cerebras_tensorflow.logs import run_log

if TYPE_CHECKING:
    _TrainFields: TypeAlias = Any
    _EvalFields: TypeAlias = Any
else:
    _TrainFields = namedtuple("TrainSpec", ("input_fn", "max_steps", "hooks", "saving_listeners"))
    _EvalFields = namedtuple(
        "EvalSpec", ("input_fn", "steps", "name", "hooks", "exporters", "start_delay_secs", "throttle_secs")
    )


class TrainSpec(_TrainFields):
    """The training half: what CerebrasEstimator.train takes.

    Raises:
        ValueError: If max_steps is not positive.
        TypeError: If input_fn is not callable, or a hook is none.
    """

    def __new__(
        cls,
        input_fn: Callable[..., Any],
        max_steps: int | None = None,
        hooks: Sequence[Any] | None = None,
        saving_listeners: Sequence[Any] | None = None,
    ) -> Any:
        """Return a checked spec."""
        _check_input_fn(input_fn)
        if max_steps is not None and max_steps <= 0:
            raise ValueError(f"Must specify max_steps > 0, given: {max_steps}")
        return super().__new__(cls, input_fn, max_steps, _checked_hooks(hooks), tuple(saving_listeners or ()))


class EvalSpec(_EvalFields):
    """The evaluating half.

    Attributes:
        steps: Batches of an evaluation; None: until the input ends.
        name: Of the evaluation, for its event files.
        exporters: Exporter, or several of them.
        start_delay_secs: Of a separate evaluator; has no effect in one process.
        throttle_secs: Seconds that pass at least between evaluations.

    Raises:
        ValueError: If a number is out of range, or two exporters have one name.
        TypeError: If input_fn is not callable, or a hook, exporter or name is of another type.
    """

    def __new__(
        cls,
        input_fn: Callable[..., Any],
        steps: int | None = 100,
        name: str | None = None,
        hooks: Sequence[Any] | None = None,
        exporters: Any = None,
        start_delay_secs: float = 120,
        throttle_secs: float = 600,
    ) -> Any:
        """Return a checked spec."""
        _check_input_fn(input_fn)
        if steps is not None and steps <= 0:
            raise ValueError(f"Must specify steps > 0, given: {steps}")
        if name is not None and not isinstance(name, str):
            raise TypeError(f"`name` must be string, given: {name}")
        if start_delay_secs < 0:
            raise ValueError(f"Must specify start_delay_secs >= 0, given: {start_delay_secs}")
        if throttle_secs < 0:
            raise ValueError(f"Must specify throttle_secs >= 0, given: {throttle_secs}")
        return super().__new__(
            cls, input_fn, steps, name, _checked_hooks(hooks), _checked_exporters(exporters),
            start_delay_secs, throttle_secs,
        )  # fmt: skip


def train_and_evaluate(
    estimator: CerebrasEstimator, train_spec: TrainSpec, eval_spec: EvalSpec
) -> tuple[dict[str, Any] | None, list[Any] | None]:
    """Train to train_spec.max_steps, evaluating after checkpoints, throttle_secs apart, and at the end.

    Returns:
        The last metrics, and what the exporters returned after the last evaluation; (None, None) if there was nothing
        left to train.

    Raises:
        TypeError: If an argument is of another type.
        ValueError: If TF_CONFIG makes this process a parameter server or an evaluator: one process does both here.
    """
    for value, kind, name in (
        (estimator, CerebrasEstimator, "estimator"),
        (train_spec, TrainSpec, "train_spec"),
        (eval_spec, EvalSpec, "eval_spec"),
    ):
        if not isinstance(value, kind):
            shown = {"estimator": "Estimator", "train_spec": "TrainSpec", "eval_spec": "EvalSpec"}[name]
            raise TypeError(f"`{name}` must have type `tf.estimator.{shown}`. Got: {type(value)}")
    task = env.tf_config().get("task", {}).get("type")
    index = int(env.tf_config().get("task", {}).get("index", 0))
    if task == "evaluator" and index > 0:
        raise ValueError(
            f"For distributed training, there can only be one `evaluator` task (with task id 0).  Given task id {index}"
        )
    if task in ("ps", "evaluator"):
        raise ValueError(
            f"TF_CONFIG gives this process the task {task!r}, but train_and_evaluate trains and evaluates in one "
            "process here. Unset TF_CONFIG."
        )
    listener = _Evaluations(estimator, train_spec, eval_spec)
    run_log.info("Start train and evaluate loop. The evaluate will happen after every checkpoint.")
    estimator.train(
        train_spec.input_fn,
        hooks=list(train_spec.hooks),
        max_steps=train_spec.max_steps,
        saving_listeners=[*train_spec.saving_listeners, listener],
    )
    return listener.metrics, listener.exports


class _Evaluations(tf.compat.v1.train.CheckpointSaverListener):
    """Evaluates and exports when a checkpoint has been saved."""

    def __init__(self, estimator: CerebrasEstimator, train_spec: TrainSpec, eval_spec: EvalSpec) -> None:
        self._estimator = estimator
        self._max_steps = train_spec.max_steps
        self._spec = eval_spec
        self._timer = tf.compat.v1.train.SecondOrStepTimer(
            every_secs=eval_spec.throttle_secs or None, every_steps=None if eval_spec.throttle_secs else 1
        )
        self._is_first = True
        self._evaluated_step: int | None = None
        self.metrics: dict[str, Any] | None = None
        self.exports: list[Any] | None = None

    def after_save(self, session: Any, global_step_value: int) -> None:
        """Evaluate, unless this is the checkpoint that the run starts with, or the last evaluation is too near."""
        if self._is_first:
            self._is_first = False
            self._timer.update_last_triggered_step(global_step_value)
            return
        is_last = self._max_steps is not None and global_step_value >= self._max_steps
        if is_last or self._timer.should_trigger_for_step(global_step_value):
            self._timer.update_last_triggered_step(global_step_value)
            self._evaluate(global_step_value, is_last)

    def end(self, session: Any, global_step_value: int) -> None:
        """Evaluate the last checkpoint, if that has not been done."""
        if self._evaluated_step != global_step_value:
            self._evaluate(global_step_value, True)

    def _evaluate(self, step: int, is_last: bool) -> None:
        self._evaluated_step = step
        metrics = self._estimator.evaluate(
            self._spec.input_fn, steps=self._spec.steps, hooks=list(self._spec.hooks), name=self._spec.name
        )
        self.metrics = metrics
        checkpoint = self._estimator.latest_checkpoint()
        self.exports = [
            exporter.export(
                self._estimator,
                os.path.join(self._estimator.model_dir, "export", exporter.name),
                checkpoint,
                metrics,
                is_last,
            )
            for exporter in self._spec.exporters
        ]


def _check_input_fn(input_fn: Any) -> None:
    if not callable(input_fn):
        raise TypeError(f"`input_fn` must be callable, given: {input_fn}")


def _checked_hooks(hooks: Iterable[Any] | None) -> tuple[Any, ...]:
    checked = tuple(hooks or ())
    for hook in checked:
        if not isinstance(hook, tf.compat.v1.train.SessionRunHook):
            raise TypeError(f"All hooks must be `SessionRunHook` instances, given: {hook}")
    return checked


def _checked_exporters(exporters: Any) -> tuple[Exporter, ...]:
    if exporters is None:
        return ()
    if isinstance(exporters, Exporter):
        exporters = [exporters]
    if isinstance(exporters, (str, Mapping)) or not isinstance(exporters, Iterable):
        raise TypeError(f"`exporters` must be an Exporter, an iterable of Exporter, or `None`, found {exporters}.")
    checked = tuple(exporters)
    names: set[str] = set()
    shown = [getattr(exporter, "name", None) for exporter in checked]
    for exporter in checked:
        if not isinstance(exporter, Exporter):
            raise TypeError(f"`exporters` must be an Exporter, an iterable of Exporter, or `None`, found {exporters}.")
        if not exporter.name:
            raise ValueError(f"An Exporter cannot have a name that is `None` or empty. All exporter names: {shown}")
        if not isinstance(exporter.name, str):
            raise ValueError(f"An Exporter must have a string name. Given: {type(exporter.name)}")
        if exporter.name in names:
            raise ValueError(
                f"`exporters` must have unique names. Such a name cannot be `None`. All exporter names: {shown}"
            )
        names.add(exporter.name)
    return checked
