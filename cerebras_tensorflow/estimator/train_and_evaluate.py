"""Training with evaluations and exports in between."""

from __future__ import annotations

import time
from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import tensorflow as tf

from cerebras_tensorflow.estimator.config.cluster import EVALUATOR
from cerebras_tensorflow.estimator.config.run_config import CSRunConfig, RunConfig
from cerebras_tensorflow.estimator.distributed.tasks import join_cluster, serve_parameters
from cerebras_tensorflow.estimator.estimator import CerebrasEstimator
from cerebras_tensorflow.estimator.evaluation.evaluator import Evaluation, Evaluator, evaluate_until_the_end
from cerebras_tensorflow.estimator.export.exporters import Exporter
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
    """The training half: arguments of CerebrasEstimator.train.

    Raises:
        ValueError: If max_steps is not positive.
        TypeError: If input_fn is not callable, or a hook is not a SessionRunHook.
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
        return super().__new__(
            cls, input_fn, max_steps, _checked_hooks(hooks), _checked_hooks(saving_listeners, "CheckpointSaverListener")
        )


class EvalSpec(_EvalFields):
    """The evaluation half.

    Attributes:
        steps: Batches per evaluation; None: until the input ends.
        name: Name of the evaluation, for its event files.
        exporters: One or several Exporters.
        start_delay_secs: Delay of a separate evaluator process [s]; no effect within the training process.
        throttle_secs: Minimum time between the starts of evaluations [s].

    Raises:
        ValueError: If a number is out of range, or two exporters have the same name.
        TypeError: If input_fn is not callable, or a hook, exporter or name has the wrong type.
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
) -> tuple[dict[str, Any] | None, list[Any] | None] | None:
    """Train to train_spec.max_steps. Evaluate after checkpoints, at least throttle_secs apart, and at the end.

    TF_CONFIG may split the work between processes. Tasks "chief" and "worker" train, "ps" holds the variables, and
    "evaluator" evaluates each new checkpoint. "master" trains and evaluates.

    Returns:
        The metrics of the last evaluation, and the results of its exporters. (None, None) if training had already
        ended. None if TF_CONFIG has a cluster.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If TF_CONFIG gives this process an unknown task, or there are several evaluators.
    """
    for value, kind, name in (
        (estimator, CerebrasEstimator, "estimator"),
        (train_spec, TrainSpec, "train_spec"),
        (eval_spec, EvalSpec, "eval_spec"),
    ):
        if not isinstance(value, kind):
            shown = {"estimator": "Estimator", "train_spec": "TrainSpec", "eval_spec": "EvalSpec"}[name]
            raise TypeError(f"`{name}` must have type `tf.estimator.{shown}`. Got: {type(value)}")
    task, index, cluster = _task(estimator.config)
    if task == EVALUATOR:
        if index > 0:
            raise ValueError(
                "For distributed training, there can only be one `evaluator` task (with task id 0).  Given task id "
                f"{index}"
            )
        evaluate_until_the_end(estimator, eval_spec, train_spec.max_steps)
        return None
    if not cluster:
        run_log.info("Running training and evaluation locally (non-distributed).")
        return _train_with_evaluations(estimator, train_spec, eval_spec)
    if task == "ps":
        serve_parameters(estimator.config)
    elif task == "master":
        server = join_cluster(estimator.config)
        _train_with_evaluations(estimator, train_spec, eval_spec)
    elif task in ("chief", "worker"):
        server = join_cluster(estimator.config)  # noqa: F841 - lives as long as the training
        _train(estimator, train_spec, train_spec.saving_listeners if task == "chief" else None)
    else:
        raise ValueError(
            f"Task type {task} is not supported. Supported task types are "
            "['chief', 'evaluator', 'master', 'ps', 'worker']"
        )
    return None


def _task(config: Any) -> tuple[str, int, dict[str, Any]]:
    """Return this process's task, its index and the cluster, which decide its part of the work.

    Under a CSRunConfig, the cluster of TF_CONFIG lists only input workers, so we ignore it.
    """
    if not isinstance(config, RunConfig):
        return "worker", 0, {}
    cluster = {} if isinstance(config, CSRunConfig) else config.cluster_spec.as_dict()
    return config.task_type, config.task_id, cluster


def _train_with_evaluations(
    estimator: CerebrasEstimator, train_spec: TrainSpec, eval_spec: EvalSpec
) -> tuple[dict[str, Any] | None, list[Any] | None]:
    run_log.info(
        "Start train and evaluate loop. The evaluate will happen after every checkpoint. Checkpoint frequency is "
        "determined based on RunConfig arguments: save_checkpoints_steps %s or save_checkpoints_secs %s.",
        estimator.config.save_checkpoints_steps, estimator.config.save_checkpoints_secs,
    )  # fmt: skip
    listener = _Evaluations(Evaluator(estimator, eval_spec, train_spec.max_steps), eval_spec.throttle_secs)
    _train(estimator, train_spec, (*train_spec.saving_listeners, listener))
    last = listener.last
    return (last.metrics, last.exports) if last is not None else (None, None)


def _train(estimator: CerebrasEstimator, spec: TrainSpec, listeners: Sequence[Any] | None) -> None:
    estimator.train(
        input_fn=spec.input_fn, hooks=list(spec.hooks), max_steps=spec.max_steps, saving_listeners=listeners
    )


class _Evaluations(tf.compat.v1.train.CheckpointSaverListener):
    """Evaluates and exports when a checkpoint has been saved."""

    def __init__(self, evaluator: Evaluator, throttle_s: float) -> None:
        self._evaluator = evaluator
        self._throttle_s = throttle_s
        self._is_first = True
        self._begun_s: float | None = None
        self._evaluated_step: int | None = None
        self.last: Evaluation | None = None

    def after_save(self, session: Any, global_step_value: int) -> None:
        """Evaluate, unless this is the first checkpoint of the run, or throttle_secs have not passed."""
        if self._is_first:
            self._is_first = False
            return
        is_due = self._begun_s is None or time.monotonic() - self._begun_s >= self._throttle_s
        if is_due:
            self._evaluate(global_step_value, self._evaluator.is_end(global_step_value))
        else:
            run_log.info("Skip the current checkpoint eval due to throttle secs (%s secs).", self._throttle_s)

    def end(self, session: Any, global_step_value: int) -> None:
        """Evaluate the last checkpoint, unless it has been evaluated."""
        if self._evaluated_step != global_step_value:
            self._evaluate(global_step_value, True)

    def _evaluate(self, step: int, is_last: bool) -> None:
        self._begun_s, self._evaluated_step = time.monotonic(), step
        self.last = self._evaluator.evaluate(is_last) or self.last


def _check_input_fn(input_fn: Any) -> None:
    if not callable(input_fn):
        raise TypeError(f"`input_fn` must be callable, given: {input_fn}")


def _checked_hooks(hooks: Iterable[Any] | None, kind: str = "SessionRunHook") -> tuple[Any, ...]:
    checked = tuple(hooks or ())
    for hook in checked:
        if not isinstance(hook, getattr(tf.compat.v1.train, kind)):
            group = "hooks" if kind == "SessionRunHook" else "saving_listeners"
            raise TypeError(f"All {group} must be `{kind}` instances, given: {hook}")
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
