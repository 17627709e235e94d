"""The result of a model_fn: EstimatorSpec, and CSEstimatorSpec with a host_call."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import tensorflow as tf

from cerebras_tensorflow import tf_private
from cerebras_tensorflow.estimator.host_call import validate_host_call
from cerebras_tensorflow.estimator.keras_metric import keras_metric
from cerebras_tensorflow.estimator.mode_keys import ModeKeys

FIELDS = (
    "mode",
    "predictions",
    "loss",
    "train_op",
    "eval_metric_ops",
    "export_outputs",
    "training_chief_hooks",
    "training_hooks",
    "scaffold",
    "evaluation_hooks",
    "prediction_hooks",
)


if TYPE_CHECKING:
    _Fields: TypeAlias = Any
else:
    _Fields = namedtuple("EstimatorSpec", FIELDS)


class EstimatorSpec(_Fields):  # no __slots__: subclasses in old scripts set attributes
    """Ops and objects of one mode, with the checks of tf.estimator 2.15."""

    def __new__(
        cls,
        mode: str,
        predictions: Any = None,
        loss: Any = None,
        train_op: Any = None,
        eval_metric_ops: Mapping[str, Any] | None = None,
        export_outputs: Any = None,
        training_chief_hooks: Any = None,
        training_hooks: Any = None,
        scaffold: Any = None,
        evaluation_hooks: Any = None,
        prediction_hooks: Any = None,
    ) -> Any:
        """Return a checked spec.

        Args:
            mode: One of ModeKeys.
            predictions: Tensor or dict of tensors; required in PREDICT.
            loss: Scalar, or of shape (1,); required in TRAIN and EVAL.
            train_op: Op of one training step; required in TRAIN.
            eval_metric_ops: Name -> (value tensor, update op), or a Keras metric. The spec holds the pair of a Keras
                metric in a graph; it holds the metric itself under a tf.distribute strategy.
            export_outputs: Signature -> ExportOutput.
            training_chief_hooks: Hooks of training on the chief.
            training_hooks: Hooks of training.
            scaffold: Scaffold: initial values, Saver and summaries.
            evaluation_hooks: Hooks of evaluations.
            prediction_hooks: Hooks of predictions.

        Raises:
            ValueError: If a value that the mode requires is missing, the loss is not a scalar, a tensor is from
                another graph, or a Keras metric was not updated.
            TypeError: If a value has the wrong type.
        """
        train_op = _checked_train_op(train_op, mode)
        loss = _checked_loss(loss, mode)
        predictions = _checked_predictions(predictions, mode)
        hooks = {
            "training_chief_hooks": training_chief_hooks,
            "training_hooks": training_hooks,
            "evaluation_hooks": evaluation_hooks,
            "prediction_hooks": prediction_hooks,
        }
        return super().__new__(
            cls,
            mode=mode,
            predictions=predictions,
            loss=loss,
            train_op=train_op,
            eval_metric_ops=_checked_metrics(eval_metric_ops),
            export_outputs=_checked_exports(export_outputs, predictions, mode),
            scaffold=_checked_scaffold(scaffold),
            **{name: _checked_hooks(name, value) for name, value in hooks.items()},
        )

    def _replace(self, **changes: Any) -> Any:
        """Return a copy with other values, checked as a new spec is; names of no field are ignored.

        Raises:
            ValueError: If the mode would change, or as the constructor.
            TypeError: As the constructor.
        """
        if changes.get("mode", self.mode) != self.mode:
            raise ValueError("mode of EstimatorSpec cannot be changed.")
        fields = {name: changes.get(name, value) for name, value in zip(FIELDS, self, strict=True)}
        return type(self)._make(EstimatorSpec(**fields))


class CSEstimatorSpec(EstimatorSpec):
    """An EstimatorSpec with a host_call: metrics that run on the host, on tensors from the device."""

    host_call: tuple[Callable[..., Any], list[Any]] | None

    def __new__(cls, mode: str, host_call: Any = None, **kwargs: Any) -> Any:
        """Return a checked spec.

        Args:
            mode: One of ModeKeys.
            host_call: (fn, tensors); fn(*tensors) returns name -> (value, update op). Used in EVAL.
            **kwargs: As in EstimatorSpec.

        Raises:
            ValueError: If both host_call and eval_metric_ops are given, or for the reasons of EstimatorSpec.
        """
        if host_call is not None:
            validate_host_call(host_call)
            if kwargs.get("eval_metric_ops"):
                raise ValueError("Please specify only one of `host_call` or `eval_metric_ops`, not both.")
        spec = super().__new__(cls, mode, **kwargs)
        spec.host_call = host_call
        return spec

    def _replace(self, **changes: Any) -> Any:
        spec = super()._replace(**changes)
        spec.host_call = self.host_call
        return spec


class _MetricTypeError(TypeError, AttributeError):
    """A part of a metric is neither tensor nor op; tf.estimator 2.15 raises AttributeError for it."""


def _checked_train_op(train_op: Any, mode: str) -> Any:
    if train_op is None:
        if mode == ModeKeys.TRAIN:
            raise ValueError("Missing train_op.")
        return None
    if not isinstance(train_op, (tf.Tensor, tf.Operation, tf.Variable)):
        raise TypeError(f"train_op must be Operation or Tensor, given: {train_op}")
    train_op = train_op.op if isinstance(train_op, tf.Variable) else train_op
    _check_graph({"train_op": train_op})
    return train_op


def _checked_loss(loss: Any, mode: str) -> Any:
    if loss is None:
        if mode in (ModeKeys.TRAIN, ModeKeys.EVAL):
            raise ValueError("Missing loss.")
        return None
    if not isinstance(loss, (tf.Tensor, tf.Variable)):
        raise TypeError(f"loss must be Tensor, given: {loss}")
    _check_graph({"loss": loss})
    tensor = tf.convert_to_tensor(loss)
    shape = tensor.shape
    if shape.num_elements() not in (None, 1):
        raise ValueError(f"Loss must be scalar, given: {tensor}")
    if shape.rank == 0:
        return tensor
    return tf.reshape(tensor, [])


def _check_graph(given: Mapping[str, Any]) -> None:
    """Check that tensors are from the current graph.

    Raises:
        ValueError: If one is not.
    """
    if tf.executing_eagerly():
        return
    current = tf.compat.v1.get_default_graph()
    for name, value in given.items():
        for key, item in value.items() if isinstance(value, Mapping) else [(None, value)]:
            for tensor in tf.nest.flatten(item):
                if isinstance(tensor, (tf.Tensor, tf.Operation)) and tensor.graph is not current:
                    shown = tensor.name if key is None else f"{key}: {tensor.name}"
                    raise ValueError(
                        f'{name} with "{shown}" must be from the default graph. Possible causes of this error '
                        f"include: \n\n1) {name} was created outside the context of the default graph.\n\n2) The "
                        'object passed through to EstimatorSpec was not created in the most recent call to "model_fn".'
                    )


def _checked_predictions(predictions: Any, mode: str) -> Any:
    """Return the predictions. A dict is copied: changes that the caller makes later have no effect."""
    if predictions is None:
        if mode == ModeKeys.PREDICT:
            raise ValueError("Missing predictions.")
        return {}
    if isinstance(predictions, Mapping):
        named = [(f"predictions[{key}]", value) for key, value in predictions.items()]
    else:
        named = [("predictions", predictions)]
    for name, value in named:
        if not isinstance(value, (tf.Tensor, tf.SparseTensor, tf.Variable, tf.RaggedTensor)):
            raise TypeError(f"{name} must be Tensor, given: {value}")
    _check_graph({"prediction values": predictions})
    return dict(predictions) if isinstance(predictions, Mapping) else predictions


def _checked_metrics(metrics: Any) -> dict[str, Any]:
    if metrics is None:
        return {}
    if not isinstance(metrics, Mapping):
        raise TypeError(f"eval_metric_ops must be a dict, given: {metrics}")
    for key, value in metrics.items():
        if hasattr(value, "result") and hasattr(value, "update_state"):
            if not getattr(value, "updates", True):  # Keras 3 keeps no list of them
                raise ValueError(f'Please call update_state(...) on the "{value.name}" metric')
        else:
            _check_metric(key, value)
    _check_graph({"eval_metric_ops": metrics})
    if tf.executing_eagerly() or tf.distribute.has_strategy():
        return dict(metrics)
    pairs = {key: value if isinstance(value, tuple) else keras_metric(value) for key, value in metrics.items()}
    if not isinstance(metrics, dict):
        return pairs
    metrics.update(pairs)  # the caller's dict: metrics that it adds later count too, as in tf.estimator
    return metrics


def _check_metric(key: Any, metric: Any) -> None:
    if not isinstance(metric, tuple) or len(metric) != 2:
        raise TypeError(
            f"Values of eval_metric_ops must be (metric_value, update_op) tuples, given: {metric} for key: {key}"
        )
    for name, part in zip(("value", "update"), metric, strict=True):
        for item in tf.nest.flatten(part):
            if not isinstance(item, (tf.Operation, tf.Variable)) and not tf.is_tensor(item):
                raise _MetricTypeError(
                    f"eval_metric_ops[{key}] {name} must be Operation or Tensor, given: {item}. "
                    "Give the pair (value tensor, update op), as the functions of tf.compat.v1.metrics return it."
                )


def _checked_hooks(name: str, hooks: Any) -> tuple[Any, ...]:
    hooks = tuple(hooks or ())
    for hook in hooks:
        if not isinstance(hook, tf.compat.v1.train.SessionRunHook):
            raise TypeError(f"All hooks must be SessionRunHook instances, given: {hook} in {name}")
    return hooks


def _checked_exports(exports: Any, predictions: Any, mode: str) -> Any:
    """Check export_outputs in PREDICT mode.

    A single output also becomes the default; without any, the predictions are the default.
    """
    if mode != ModeKeys.PREDICT:
        return exports
    if exports is None and not _is_dense(predictions):
        return None  # tf.estimator refuses such predictions; ours predicts them and cannot export them
    return tf_private.export_utils().get_export_outputs(exports, predictions)


def _is_dense(predictions: Any) -> bool:
    values = predictions.values() if isinstance(predictions, Mapping) else [predictions]
    return not any(isinstance(value, (tf.SparseTensor, tf.RaggedTensor)) for value in values)


def _checked_scaffold(scaffold: Any) -> Any:
    scaffold = scaffold or tf.compat.v1.train.Scaffold()
    if not isinstance(scaffold, tf.compat.v1.train.Scaffold):
        raise TypeError(f"scaffold must be tf.train.Scaffold. Given: {scaffold}")
    return scaffold
