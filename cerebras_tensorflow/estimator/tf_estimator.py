"""Estimator: the class of tf.estimator, for scripts without a CS system."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from cerebras_tensorflow.estimator.config.cluster import EVALUATOR
from cerebras_tensorflow.estimator.config.run_config import RunConfig, with_default_session_config
from cerebras_tensorflow.estimator.distributed.graph_model import (
    call_on_cpu,
    device_function,
    parse_input_fn_result,
)
from cerebras_tensorflow.estimator.estimator import CerebrasEstimator
from cerebras_tensorflow.estimator.mode_keys import ModeKeys
from cerebras_tensorflow.estimator.user_functions import parameters_of

_PRIVATE_MEMBERS = frozenset(
    {
        *("_actual_eval", "_actual_train_model_distributed", "_add_meta_graph_for_mode", "_call_input_fn"),
        *("_assert_members_are_not_overridden", "_call_model_fn", "_call_model_fn_eval", "_create_global_step"),
        *("_call_model_fn_eval_distributed", "_convert_eval_steps_to_hooks", "_convert_train_steps_to_hooks"),
        *("_evaluate_build_graph", "_evaluate_run", "_extract_batch_length", "_extract_keys", "_maybe_warm_start"),
        *("_get_features_and_labels_from_input_fn", "_get_features_from_input_fn", "_get_iterator_from_input_fn"),
        *("_train_model", "_train_model_default", "_train_model_distributed", "_train_with_estimator_spec"),
        *("_train_with_estimator_spec_distributed", "_validate_features_in_predict_input"),
    }
)
"""Private methods of tf.estimator 2.15. A subclass that replaced one would expect a run to call it. Runs call none."""


class _Kind(type):
    """Makes a CerebrasEstimator an instance of Estimator, as in the original."""

    def __instancecheck__(cls, instance: Any) -> bool:
        if cls.__dict__.get("_cs_counts_all", False):
            return isinstance(instance, CerebrasEstimator)
        return super().__instancecheck__(instance)


class Estimator(CerebrasEstimator, metaclass=_Kind):
    """Runs a model_fn on this machine, as documented for tf.estimator.Estimator 2.15.

    Unlike CerebrasEstimator, it raises an error for labels of -1 (TensorFlow's op does), and if the checkpoint of a
    warm start lacks a trainable variable.

    Args:
        model_fn: model_fn(features, labels, mode, params, config) -> EstimatorSpec. Only features is required.
        model_dir: Folder of checkpoints and event files. Default: the config's, or a new temporary one.
        config: RunConfig.
        params: Passed to model_fn and input_fn.
        warm_start_from: Path or WarmStartSettings.

    Raises:
        ValueError: If a subclass overrides a member other than latest_checkpoint, if model_fn does not take features or
            has an unknown parameter, or for the reasons of CerebrasEstimator.
        TypeError: If model_fn cannot be called.
    """

    _cs_counts_all = True
    _cs_is_cerebras = False

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: str | os.PathLike[str] | None = None,
        config: Any = None,
        params: Any = None,
        warm_start_from: Any = None,
    ) -> None:
        type(self)._assert_members_are_not_overridden(self)  # noqa: SLF001 - programs replace it on the class
        if model_fn is not None:
            _check_arguments(model_fn)
        config = config if config is not None else RunConfig()
        super().__init__(model_fn, model_dir=model_dir, config=config, params=params, warm_start_from=warm_start_from)
        if self._config.session_config is None:  # model_fn may read it; sessions without it have our own settings
            self._config = with_default_session_config(self._config)
        self._session_config = self._config.session_config
        self._cs_settings = replace(
            self._cs_settings, config=self._config, make_global_step=self._create_and_assert_global_step
        )
        # Subclasses in tensorflow_estimator read these two.
        self._train_distribution = self._cs_settings.distribution.train_distribute
        self._eval_distribution = self._cs_settings.distribution.eval_distribute
        self._device_fn = device_function(self._cs_settings.distribution)  # programs read it

    def train(  # type: ignore[override]
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[Any] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Sequence[Any] | None = None,
    ) -> Estimator:
        """Like CerebrasEstimator.train, without a CS system.

        Raises:
            ValueError: If TF_CONFIG makes this process an evaluator or a parameter server, or for the reasons of
                CerebrasEstimator.train.
        """
        if getattr(self.config, "task_type", None) in (EVALUATOR, "ps"):
            raise ValueError(
                "Train has been called wrong configuration. Please use tf.estimator.train_and_evaluate which calls "
                f"proper API according to given configuration. Current configuration: {self.config}."
            )
        super().train(input_fn, hooks, steps, max_steps, saving_listeners, use_cs=False)
        return self

    def evaluate(  # type: ignore[override]
        self,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Sequence[Any] | None = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """Like CerebrasEstimator.evaluate, without a CS system."""
        return super().evaluate(input_fn, steps, hooks, checkpoint_path, name)

    def predict(  # type: ignore[override]
        self,
        input_fn: Callable[..., Any],
        predict_keys: Sequence[str] | None = None,
        hooks: Sequence[Any] | None = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[Any]:
        """Like CerebrasEstimator.predict, without a CS system."""
        return super().predict(input_fn, predict_keys, hooks, checkpoint_path, yield_single_examples)

    def export_savedmodel(
        self,
        export_dir_base: str | os.PathLike[str],
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: str | None = None,
        strip_default_attrs: bool = False,
    ) -> bytes:
        """TensorFlow 1's name for export_saved_model. strip_default_attrs leaves out attributes with default values."""
        if serving_input_receiver_fn is None:
            raise ValueError("An input_receiver_fn must be defined.")
        receiver_fns = {ModeKeys.PREDICT: serving_input_receiver_fn}
        return self._cs_export(
            export_dir_base, receiver_fns, assets_extra, as_text, checkpoint_path, strips_defaults=strip_default_attrs
        )

    def _create_and_assert_global_step(self, graph: tf.Graph) -> Any:
        """Make the global step of a graph. Some programs call or replace this private method of tf.estimator."""
        return tf.compat.v1.train.create_global_step(graph)

    def _call_input_fn(self, input_fn: Callable[..., Any], mode: str, input_context: Any = None) -> Any:
        """Call an input_fn in the current graph. Programs call this private method of tf.estimator and the next."""
        return call_on_cpu(input_fn, mode, self.params, self.config, input_context)

    def _call_model_fn(self, features: Any, labels: Any, mode: str, config: Any) -> Any:
        """Call model_fn in the current graph; return its EstimatorSpec."""
        return self.model_fn(features, labels, mode, config)

    def _get_features_and_labels_from_input_fn(
        self, input_fn: Callable[..., Any], mode: str
    ) -> tuple[Any, Any, list[Any]]:
        """Call an input_fn; return features, labels and the hooks that start its iterator."""
        return parse_input_fn_result(self._call_input_fn(input_fn, mode))

    def _get_features_from_input_fn(self, input_fn: Callable[..., Any], mode: str) -> tuple[Any, list[Any]]:
        """Call an input_fn; return features and the hooks that start its iterator."""
        features, _, hooks = self._get_features_and_labels_from_input_fn(input_fn, mode)
        return features, hooks

    def _assert_members_are_not_overridden(self) -> None:
        """Raise an error if a subclass overrides a public member that tf.estimator protects."""
        kind = type(self)
        if kind in (Estimator, EstimatorV2) or kind.__name__ == "TPUEstimator":
            return
        public = {name for name in dir(Estimator) if not name.startswith("_")}
        protected = (public | _PRIVATE_MEMBERS) - {"model_fn", "latest_checkpoint", "compile"}
        overridden = sorted(protected & set(vars(kind)))
        if overridden:
            raise ValueError(
                f"Subclasses of Estimator cannot override members of Estimator. {kind} does override {overridden}"
            )


class EstimatorV2(Estimator):
    """The Estimator of TensorFlow 2, which has no export_savedmodel."""

    _cs_counts_all = True

    @property
    def export_savedmodel(self) -> Any:
        """Raise AttributeError: TensorFlow 2 has export_saved_model only."""
        raise AttributeError(
            "`Estimator.export_savedmodel` has been deprecated. Please use `export_saved_model` instead."
        )


def _check_arguments(model_fn: Callable[..., Any]) -> None:
    """Check the parameters of a model_fn.

    Raises:
        ValueError: If it does not take features, or has an unknown parameter.
    """
    if not callable(model_fn):
        raise TypeError(f"unsupported callable: model_fn must be a function, given: {model_fn!r}")
    taken = parameters_of(model_fn)
    if "features" not in taken:
        raise ValueError(f"model_fn ({model_fn}) must include features argument.")
    unknown = sorted(taken - {"features", "labels", "mode", "params", "config", "self", "**"})
    if unknown:
        raise ValueError(f"model_fn ({model_fn}) has following not expected args: {unknown}")
