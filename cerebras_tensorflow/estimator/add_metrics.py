"""add_metrics and call_logit_fn of tf.estimator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from cerebras_tensorflow.estimator.mode_keys import ModeKeys
from cerebras_tensorflow.estimator.tf_estimator import Estimator
from cerebras_tensorflow.estimator.user_functions import call_with, parameters_of

_METRIC_ARGUMENTS = {"features", "labels", "predictions", "config"}


def add_metrics(estimator: Any, metric_fn: Callable[..., Any]) -> Estimator:
    """Return an Estimator on the same model_dir that also evaluates the metrics of metric_fn.

    Args:
        estimator: The estimator.
        metric_fn: Takes any of features, labels, predictions and config; returns name -> (value, update op), or Keras
            metrics. They replace metrics of the same name.

    Raises:
        TypeError: If metric_fn is no function.
        ValueError: If metric_fn takes another argument.
    """
    if not callable(metric_fn):
        raise TypeError(f"metric_fn must be a function, given: {metric_fn!r}")
    unknown = sorted(parameters_of(metric_fn) - _METRIC_ARGUMENTS - {"self", "**"})
    if unknown:
        raise ValueError(f"metric_fn ({metric_fn}) has following not expected args: {unknown}")

    def model_fn(features: Any, labels: Any, mode: str, config: Any) -> Any:
        spec = estimator.model_fn(features, labels, mode, config)
        if mode != ModeKeys.EVAL:
            return spec
        given = {"features": features, "labels": labels, "predictions": spec.predictions, "config": config}
        return spec._replace(eval_metric_ops={**spec.eval_metric_ops, **(call_with(metric_fn, given) or {})})

    warm_start = estimator._warm_start_settings  # noqa: SLF001 - the new Estimator starts from the same weights
    return Estimator(model_fn, estimator.model_dir, estimator.config, warm_start_from=warm_start)


def call_logit_fn(logit_fn: Callable[..., Any], features: Any, mode: str, params: Any, config: Any) -> Any:
    """Return the logits of a logit_fn, which may also take mode, params and config.

    Raises:
        ValueError: If it returns neither a tensor nor a dict of tensors.
    """
    logits = call_with(logit_fn, {"features": features, "mode": mode, "params": params, "config": config})
    if not isinstance(logits, (dict, tf.Tensor, tf.SparseTensor)):
        raise ValueError(f"logit_fn should return a Tensor or a dictionary of Tensors.  Given: {logits!r}")
    return logits
