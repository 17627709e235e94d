"""TPUEstimatorSpec: what a model_fn for TPUs returns, and its conversion to an EstimatorSpec."""

from __future__ import annotations

import inspect
from collections import namedtuple
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import tensorflow as tf
from typing_extensions import override

from cerebras_tensorflow.estimator.spec import EstimatorSpec
from cerebras_tensorflow.estimator.training.ops import STEP_ROOTS

_FIELDS = (
    *("mode", "predictions", "loss", "train_op", "eval_metrics", "export_outputs", "scaffold_fn", "host_call"),
    *("training_hooks", "evaluation_hooks", "prediction_hooks"),
)

if TYPE_CHECKING:
    _Fields: TypeAlias = Any
else:
    _Fields = namedtuple("TPUEstimatorSpec", _FIELDS)


class TPUEstimatorSpec(_Fields):
    """EstimatorSpec for TPUs: metrics and host calls are pairs of a function and its tensors."""

    def __new__(
        cls,
        mode: str,
        predictions: Any = None,
        loss: Any = None,
        train_op: Any = None,
        eval_metrics: Any = None,
        export_outputs: Any = None,
        scaffold_fn: Callable[[], Any] | None = None,
        host_call: Any = None,
        training_hooks: Any = None,
        evaluation_hooks: Any = None,
        prediction_hooks: Any = None,
    ) -> Any:
        """Return a checked spec.

        Args:
            mode: As EstimatorSpec.
            predictions: As EstimatorSpec.
            loss: As EstimatorSpec.
            train_op: As EstimatorSpec.
            eval_metrics: (fn, tensors); fn(*tensors) or fn(**tensors) returns name -> (value, update op).
            export_outputs: As EstimatorSpec.
            scaffold_fn: Returns the Scaffold.
            host_call: (fn, tensors); the ops that fn returns run with each step.
            training_hooks: SessionRunHooks.
            evaluation_hooks: SessionRunHooks.
            prediction_hooks: SessionRunHooks.

        Raises:
            ValueError: If eval_metrics or host_call is not a pair, its tensors are not a list or dict, or as
                EstimatorSpec.
            TypeError: If the first element of a pair cannot be called, or as EstimatorSpec.
            RuntimeError: If the function of a pair does not take as many arguments as there are tensors.
        """
        for name, call in (("eval_metrics", eval_metrics), ("host_call", host_call)):
            if call is not None:
                _check_call(name, call)
        checked = EstimatorSpec(
            mode,
            predictions,
            loss,
            train_op,
            export_outputs=export_outputs,
            training_hooks=training_hooks,
            evaluation_hooks=evaluation_hooks,
            prediction_hooks=prediction_hooks,
        )
        own = {"eval_metrics": eval_metrics, "scaffold_fn": scaffold_fn, "host_call": host_call}
        return super().__new__(cls, *(own[name] if name in own else getattr(checked, name) for name in _FIELDS))

    def as_estimator_spec(self) -> EstimatorSpec:
        """Return the EstimatorSpec that runs without a TPU."""
        metrics = None if self.eval_metrics is None else _result("eval_metrics", self.eval_metrics)
        hooks = () if self.host_call is None else (HostCallHook(_host_ops(self.host_call)),)
        spec: EstimatorSpec = EstimatorSpec(
            mode=self.mode,
            predictions=self.predictions,
            loss=self.loss,
            train_op=self.train_op,
            eval_metric_ops=metrics,
            export_outputs=self.export_outputs,
            scaffold=self.scaffold_fn() if self.scaffold_fn else None,
            training_hooks=self.training_hooks + hooks,
            evaluation_hooks=self.evaluation_hooks + hooks,
            prediction_hooks=self.prediction_hooks + hooks,
        )
        return spec


class HostCallHook(tf.compat.v1.train.SessionRunHook):
    """Runs the ops of a host_call with each step. Opens and flushes the summary writers that they use."""

    def __init__(self, tensors: Any) -> None:
        self._tensors = tensors
        self._init_ops: list[Any] = []
        self._flush_ops: list[Any] = []

    def begin(self) -> None:
        """Make the ops that open and flush the graph's summary writers."""
        from tensorflow.python.ops import summary_ops_v2  # private: nothing public gives a graph's writers

        self._init_ops = list(summary_ops_v2.summary_writer_initializer_op())
        self._flush_ops = [summary_ops_v2.legacy_raw_flush(writer=op.inputs[0]) for op in self._init_ops]

    @override
    def after_create_session(self, session: Any, coord: Any) -> None:
        """Open the writers."""
        session.run(self._init_ops)

    @override
    def before_run(self, run_context: Any) -> Any:
        """Add the host_call's tensors to the run."""
        return tf.compat.v1.train.SessionRunArgs(self._tensors)

    def end(self, session: Any) -> None:
        """Flush the writers."""
        session.run(self._flush_ops)


def _check_call(name: str, call: Any) -> None:
    if not isinstance(call, (tuple, list)):
        raise ValueError(f"{name} should be tuple or list")
    if len(call) != 2:
        raise ValueError(f"{name} should have two elements.")
    function, tensors = call
    if not callable(function):
        raise TypeError(f"{name}[0] should be callable.")
    if not isinstance(tensors, (tuple, list, dict)):
        raise ValueError(f"{name}[1] should be tuple or list, or dict.")
    if isinstance(tensors, dict):
        return
    parameters = list(inspect.signature(function).parameters.values())
    if not any(item.kind is item.VAR_POSITIONAL for item in parameters) and len(parameters) != len(tensors):
        raise RuntimeError(
            f"In TPUEstimatorSpec.{name}, length of tensors {len(tensors)} does not match method args of the function, "
            f"which takes {len(parameters)}."
        )


def _host_ops(call: Any) -> Any:
    """Return the ops of a host_call. The step contains them, so they see the global step before its increment."""
    ops = _result("host_call", call)
    for op in tf.nest.flatten(ops):
        tf.compat.v1.add_to_collection(STEP_ROOTS, op.name)
    return ops


def _result(name: str, call: Any) -> Any:
    function, tensors = call
    if not isinstance(tensors, Mapping):
        return function(*tensors)
    try:
        return function(**tensors)
    except TypeError as error:
        raise TypeError(f"{name}: the function does not take the tensors {sorted(tensors)}: {error}") from error
