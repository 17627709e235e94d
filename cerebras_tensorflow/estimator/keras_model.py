"""Estimators from a compiled Keras 2 model (tf_keras): the wheel tensorflow-estimator makes them, on our core."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from typing import Any

from cerebras_tensorflow import tf_private
from cerebras_tensorflow.estimator.config.run_config import CSRunConfig
from cerebras_tensorflow.estimator.estimator import CerebrasEstimator
from cerebras_tensorflow.estimator.tf_estimator import Estimator


def model_to_estimator(
    keras_model: Any = None,
    keras_model_path: str | None = None,
    custom_objects: Mapping[str, Any] | None = None,
    model_dir: str | None = None,
    config: Any = None,
    checkpoint_format: str | None = "checkpoint",
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
        checkpoint_format: "checkpoint": names as tf.train.Checkpoint and Keras write them. "saver": names of variables.
        metric_names_map: Name of each metric in Keras -> name in the results.
        export_outputs: Name of an output -> class of an ExportOutput, in addition to the default.

    Raises:
        ValueError: If both or neither of model and path are given, the model is not one of Keras 2 or not compiled, or
            checkpoint_format is unknown.
    """
    _check_keras_2(keras_model)
    estimator: Estimator = tf_private.keras_lib().model_to_estimator(
        keras_model,
        keras_model_path,
        custom_objects,
        model_dir,
        config,
        checkpoint_format,
        use_v2_estimator=True,
        metric_names_map=metric_names_map,
        export_outputs=export_outputs,
    )
    return estimator


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
        config = config.replace(model_dir=model_dir or config.model_dir or tempfile.mkdtemp(prefix="cs_model_dir_"))
        library = tf_private.keras_lib()
        if (keras_model is None) == (keras_model_path is None):
            raise ValueError("Give one of `keras_model` and `keras_model_path`.")
        if keras_model is None:
            import tf_keras

            keras_model = tf_keras.models.load_model(keras_model_path, custom_objects=custom_objects)
        _check_keras_2(keras_model)
        if not getattr(keras_model, "optimizer", None):
            raise ValueError("The Keras model has no optimizer. Call its `compile` first.")
        keras_fn = library._create_keras_model_fn(  # noqa: SLF001 - the release of the wheel is fixed
            keras_model, custom_objects, False, metric_names_map, export_outputs
        )
        first = library._save_first_checkpoint(keras_model, custom_objects, config, False)  # noqa: SLF001

        def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:  # noqa: ARG001
            return keras_fn(features, labels, mode)

        super().__init__(model_fn, config=config, params=params, warm_start_from=first)


def _check_keras_2(model: Any) -> None:
    """Check that a model is one of Keras 2, unless it is None.

    Raises:
        ValueError: If it is not.
    """
    if model is None:
        return
    import tf_keras

    if not isinstance(model, tf_keras.Model):
        raise ValueError(
            f"model_to_estimator takes a model of Keras 2 (tf_keras), given: {type(model)}. Keras 3 has no graph mode "
            "for Estimators. Set TF_USE_LEGACY_KERAS=1 before TensorFlow is imported, so that tf.keras is Keras 2, or "
            "build the model with tf_keras."
        )
