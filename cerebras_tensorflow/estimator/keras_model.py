"""Estimators from a compiled Keras 2 model (tf_keras) and its weights."""

from __future__ import annotations

import inspect
import os
import re
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from cerebras_tensorflow import tf_private
from cerebras_tensorflow.estimator.config.run_config import CSRunConfig, RunConfig
from cerebras_tensorflow.estimator.estimator import CerebrasEstimator
from cerebras_tensorflow.estimator.export.export_outputs import PredictOutput
from cerebras_tensorflow.estimator.mode_keys import ModeKeys
from cerebras_tensorflow.estimator.model.model_call import graph_semantics, variable_name
from cerebras_tensorflow.estimator.spec import EstimatorSpec
from cerebras_tensorflow.estimator.tf_estimator import Estimator
from cerebras_tensorflow.estimator.training.warm_start import WarmStartSettings
from cerebras_tensorflow.saver.bundle.writer import BundleWriter


def model_to_estimator(
    keras_model: Any = None,
    keras_model_path: str | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    model_dir: str | None = None,
    config: Any = None,
    checkpoint_format: str = "checkpoint",  # noqa: ARG001
    metric_names_map: Mapping[str, str] | None = None,
    export_outputs: Any = None,
) -> Estimator:
    """Return an Estimator that trains, evaluates and predicts as a compiled model of tf_keras does.

    Args:
        keras_model: The model. Give this or keras_model_path.
        keras_model_path: Path of a saved model.
        custom_objects: Classes and functions that the model needs in addition to those of Keras.
        model_dir: As in Estimator.
        config: As in Estimator.
        checkpoint_format: Ignored; all Estimators here write the same kind of checkpoint.
        metric_names_map: Name of a metric in Keras -> name in the results.
        export_outputs: export_outputs of the spec; by default the model's outputs.

    Raises:
        ValueError: If both or neither of model and path are given, the model has not been compiled, or there is no
            graph version of its optimizer.
    """
    config = config if config is not None else RunConfig()
    folder = model_dir or config.model_dir or tempfile.mkdtemp(prefix="cs_model_dir_")
    made = _made(keras_model, keras_model_path, custom_objects, metric_names_map, export_outputs)
    return Estimator(made.model_fn, folder, config, warm_start_from=made.save_weights(folder))


class KerasModelToCerebrasEstimator(CerebrasEstimator):
    """A CerebrasEstimator that trains, evaluates and predicts as a compiled model of tf_keras does.

    Args:
        keras_model, keras_model_path, custom_objects, model_dir, metric_names_map, export_outputs: As in
            model_to_estimator.
        config: CSRunConfig or RunConfig.
        params: Passed to input_fn.

    Raises:
        ValueError: For the reasons of model_to_estimator.
    """

    def __init__(
        self,
        keras_model: Any = None,
        keras_model_path: str | None = None,
        custom_objects: Mapping[str, Any] | None = None,
        model_dir: str | None = None,
        config: Any = None,
        params: Any = None,
        metric_names_map: Mapping[str, str] | None = None,
        export_outputs: Any = None,
    ) -> None:
        config = config if config is not None else CSRunConfig()
        folder = model_dir or config.model_dir or tempfile.mkdtemp(prefix="cs_model_dir_")
        made = _made(keras_model, keras_model_path, custom_objects, metric_names_map, export_outputs)

        def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:  # noqa: ARG001
            return made.model_fn(features, labels, mode)

        super().__init__(model_fn, folder, config=config, params=params, warm_start_from=made.save_weights(folder))


def _made(
    keras_model: Any,
    keras_model_path: str | None,
    custom_objects: Mapping[str, Any] | None,
    metric_names_map: Mapping[str, str] | None,
    export_outputs: Any,
) -> _KerasModel:
    import tf_keras

    if not (keras_model or keras_model_path):
        raise ValueError("Either `keras_model` or `keras_model_path` needs to be provided.")
    if keras_model and keras_model_path:
        raise ValueError("Please specify either `keras_model` or `keras_model_path`, but not both.")
    if keras_model_path:
        keras_model = tf_keras.models.load_model(keras_model_path, custom_objects=custom_objects)
    if not isinstance(keras_model, tf_keras.Model):
        raise ValueError(f"model_to_estimator takes a model of Keras 2 (tf_keras), given: {type(keras_model)}")
    if not getattr(keras_model, "optimizer", None):
        raise ValueError(
            "The given keras model has not been compiled yet. Please compile the model with `model.compile()` before "
            "calling `model_to_estimator`."
        )
    return _KerasModel(keras_model, dict(custom_objects or {}), dict(metric_names_map or {}), export_outputs)


class _KerasModel:
    """A model as config, weights and compile settings, from which each graph gets a new copy."""

    def __init__(self, model: Any, objects: dict[str, Any], metric_names: dict[str, str], exports: Any) -> None:
        self._model = model
        self._weights: list[np.ndarray] = model.get_weights()
        self._compile_config = model.get_compile_config()
        self._optimizer = _graph_optimizer(model.optimizer)
        self._objects = objects
        self._metric_names = metric_names
        self._exports = exports

    def model_fn(self, features: Any, labels: Any, mode: str) -> Any:
        """The Estimator's model_fn."""
        import tf_keras

        containers = tf_private.keras_compile_utils()
        step = tf.compat.v1.train.get_or_create_global_step()
        model = self._clone()
        if isinstance(features, Mapping) and len(features) == 1 and len(model.inputs) == 1:
            (features,) = features.values()
        with tf_keras.utils.custom_object_scope(self._objects):
            outputs = model(features, training=mode == ModeKeys.TRAIN)
            names = model.output_names
            predictions = dict(zip(names, outputs if len(names) > 1 else [outputs], strict=True))
            if mode == ModeKeys.PREDICT:
                exports = self._exports or {"serving_default": PredictOutput(predictions)}
                return EstimatorSpec(mode, predictions=predictions, export_outputs=exports)
            compiled = tf_keras.saving.deserialize_keras_object(self._compile_config)
            losses = containers.LossesContainer(compiled.get("loss"), compiled.get("loss_weights"), output_names=names)
            loss = losses(labels, outputs, regularization_losses=model.losses)
            if mode == ModeKeys.EVAL:
                measured = containers.MetricsContainer(compiled.get("metrics"), compiled.get("weighted_metrics"), names)
                measured.update_state(labels, outputs)
                metrics = {self._metric_names.get(metric.name, metric.name): metric for metric in measured.metrics}
                return EstimatorSpec(mode, predictions, loss, eval_metric_ops=metrics)
            train_op = self._train_op(loss, model.trainable_weights, step)
        return EstimatorSpec(mode, predictions, loss, tf.group(train_op, *model.updates))

    def save_weights(self, model_dir: str) -> WarmStartSettings:
        """Write the weights below model_dir under their names in a graph; return settings that start from them."""
        path = os.path.join(model_dir, "keras", "keras_model.ckpt")
        with tf.Graph().as_default(), graph_semantics():
            tf.compat.v1.train.create_global_step()
            names = [variable_name(weight) for weight in self._clone().weights]
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with BundleWriter(path) as writer:
            for name, value in sorted(zip(names, self._weights, strict=True)):
                writer.add(name, np.asarray(value))
        return WarmStartSettings(path, [f"{re.escape(name)}:0$" for name in names])

    def _clone(self) -> Any:
        import tf_keras

        with tf_keras.utils.custom_object_scope(self._objects):
            return tf_keras.models.clone_model(self._model)

    def _train_op(self, loss: Any, weights: list[Any], step: Any) -> Any:
        if isinstance(self._optimizer, tf.compat.v1.train.Optimizer):
            return self._optimizer.minimize(loss, step, weights)
        kind, config = self._optimizer
        optimizer = kind.from_config(config)
        optimizer.iterations = step
        return tf.group(*optimizer.get_updates(loss, weights))


def _graph_optimizer(optimizer: Any) -> Any:
    """Return a graph version of an optimizer: an optimizer of TensorFlow, or (class, config).

    Raises:
        ValueError: If there is no graph version.
    """
    from tf_keras.optimizers import legacy

    own = getattr(optimizer, "optimizer", optimizer)  # Keras wraps one of tf.compat.v1.train
    if isinstance(own, tf.compat.v1.train.Optimizer):
        return own
    kind = getattr(legacy, type(optimizer).__name__, None)
    if kind is None:
        raise ValueError(
            f"model_to_estimator knows no {type(optimizer).__name__} for graphs. Compile the model with one of "
            f"tf_keras.optimizers.legacy: {', '.join(name for name in dir(legacy) if name[0].isupper())}."
        )
    config = optimizer.get_config()
    taken = set(inspect.signature(kind.__init__).parameters) | {"decay", "clipnorm", "clipvalue", "global_clipnorm"}
    return kind, {key: value for key, value in config.items() if key in taken and value is not None}
