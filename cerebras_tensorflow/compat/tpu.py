"""tf.estimator.tpu without a TPU: TPUEstimator and its RunConfig, for scripts that pass `use_tpu=False`.

TPUEstimatorSpec is in tpu_spec.py. TPUConfig and InputPipelineConfig come from the wheel tensorflow-estimator.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from cerebras_tensorflow.compat.tpu_spec import TPUEstimatorSpec
from cerebras_tensorflow.estimator.config import run_config
from cerebras_tensorflow.estimator.mode_keys import ModeKeys
from cerebras_tensorflow.estimator.tf_estimator import Estimator
from cerebras_tensorflow.estimator.user_functions import parameters_of
from cerebras_tensorflow.logs import run_log

RESERVED_PARAMS = ("batch_size", "context")
NO_TPU = (
    "use_tpu=True, but there is no TPU here. Run the same program with use_tpu=False (most scripts have a --use_tpu "
    "option): it then trains with train_batch_size on this machine, or on the CS system if csrun_wse starts it."
)


class RunConfig(run_config.RunConfig):
    """A RunConfig that also keeps the settings for a TPU.

    Args:
        tpu_config: TPUConfig.
        evaluation_master: Session target of evaluations; the master's by default.
        master: Session target; "" is this process.
        cluster: A cluster resolver; refused together with master.
        **kwargs: As RunConfig.

    Raises:
        ValueError: If master and cluster are both given.
    """

    def __init__(
        self,
        tpu_config: Any = None,
        evaluation_master: str | None = None,
        master: str | None = None,
        cluster: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if master is not None and cluster is not None:
            raise ValueError("Both master and cluster are set.")
        self._tpu_config = tpu_config or _default_tpu_config()
        self._tpu_cluster = cluster
        self._tpu_master = master if master is not None else cluster.master() if cluster is not None else super().master
        given = evaluation_master if evaluation_master is not None else super().evaluation_master
        self._tpu_evaluation_master = given or (self._tpu_master if evaluation_master is None else "")

    @property
    def tpu_config(self) -> Any:
        """The TPUConfig."""
        return self._tpu_config

    @property
    def cluster(self) -> Any:
        """The cluster resolver, or None."""
        return self._tpu_cluster

    @property
    def master(self) -> str:
        """Session target."""
        return self._tpu_master

    @property
    def evaluation_master(self) -> str:
        """Session target of evaluations."""
        return self._tpu_evaluation_master

    def replace(self, **kwargs: Any) -> RunConfig:
        """Return a copy with the given values changed. `tpu_config` may be among them."""
        tpu_config = kwargs.pop("tpu_config", self._tpu_config)
        result: Any = super().replace(**kwargs)
        result._tpu_config = tpu_config  # noqa: SLF001 - a RunConfig of this class
        return result


class TPUEstimator(Estimator):
    """Estimator for scripts that can use a TPU. It passes `params["batch_size"]` to input_fn and model_fn.

    Args:
        model_fn: model_fn(features, labels, mode, config, params) -> TPUEstimatorSpec or EstimatorSpec. It must take
            params.
        model_dir: As Estimator.
        config: RunConfig of this module.
        params: Passed to model_fn and input_fn, with batch_size and use_tpu added.
        use_tpu: Must be False.
        train_batch_size, eval_batch_size, predict_batch_size: `params["batch_size"]` in each mode.
        batch_axis, eval_on_tpu, embedding_config_spec, export_saved_model_api_version: No effect; they configure a TPU.
        export_to_tpu, export_to_cpu: One of them must be true. An export is always for the CPU, with the tag `serve`
            only: 2.15 adds a second graph, tagged `serve` and `tpu`, whose ops run on a TPU only.
        warm_start_from: As Estimator.

    Raises:
        NotImplementedError: If use_tpu is True. The text says how to run here.
        ValueError: If the config is not a RunConfig of this module, params has a reserved key, or
            export_saved_model_api_version is neither 1 nor 2.
    """

    def __init__(
        self,
        model_fn: Any = None,
        model_dir: str | os.PathLike[str] | None = None,
        config: Any = None,
        params: Mapping[str, Any] | None = None,
        use_tpu: bool = True,
        train_batch_size: int | None = None,
        eval_batch_size: int | None = None,
        predict_batch_size: int | None = None,
        batch_axis: Any = None,  # noqa: ARG002 - TensorFlow's signature
        eval_on_tpu: bool = True,  # noqa: ARG002
        export_to_tpu: bool = True,
        export_to_cpu: bool = True,
        warm_start_from: Any = None,
        embedding_config_spec: Any = None,  # noqa: ARG002
        export_saved_model_api_version: Any = 1,
    ) -> None:
        if config is None or not isinstance(config, RunConfig):
            raise ValueError("`config` must be provided with type `tpu_config.RunConfig`")
        if params is not None and any(key in params for key in RESERVED_PARAMS):
            raise ValueError(f"{list(RESERVED_PARAMS)} are reserved keys but existed in params {params}.")
        if use_tpu and train_batch_size is None:
            raise ValueError("`train_batch_size` cannot be `None`")
        if use_tpu:
            raise NotImplementedError(NO_TPU)
        if getattr(export_saved_model_api_version, "value", export_saved_model_api_version) not in (1, 2):
            raise ValueError(f"export_saved_model_api_version should be 1 or 2; got {export_saved_model_api_version}.")
        if not callable(model_fn):
            raise TypeError(f"model_fn must be a function, given: {model_fn!r}")
        self._is_exporting = export_to_tpu or export_to_cpu
        self._batch_sizes = {
            ModeKeys.TRAIN: train_batch_size,
            ModeKeys.EVAL: eval_batch_size,
            ModeKeys.PREDICT: predict_batch_size,
        }
        self._running_mode: str | None = None
        super().__init__(self._with_params(model_fn), model_dir, config, dict(params or {}), warm_start_from)

    def _assert_members_are_not_overridden(self) -> None:
        """Allow overrides: TPUEstimator itself overrides train, evaluate and predict."""

    def train(  # type: ignore[override]
        self,
        input_fn: Callable[..., Any],
        hooks: Sequence[Any] | None = None,
        steps: int | None = None,
        max_steps: int | None = None,
        saving_listeners: Sequence[Any] | None = None,
    ) -> TPUEstimator:
        """Train, as Estimator.train."""
        with self._running(ModeKeys.TRAIN):
            super().train(self._with_batch_size(input_fn, ModeKeys.TRAIN), hooks, steps, max_steps, saving_listeners)
        return self

    def evaluate(  # type: ignore[override]
        self,
        input_fn: Callable[..., Any],
        steps: int | None = None,
        hooks: Sequence[Any] | None = None,
        checkpoint_path: str | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """Evaluate, as Estimator.evaluate."""
        with self._running(ModeKeys.EVAL):
            given = self._with_batch_size(input_fn, ModeKeys.EVAL)
            return super().evaluate(given, steps, hooks, checkpoint_path, name)

    def predict(  # type: ignore[override]
        self,
        input_fn: Callable[..., Any],
        predict_keys: Sequence[str] | None = None,
        hooks: Sequence[Any] | None = None,
        checkpoint_path: str | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[Any]:
        """Predict, as Estimator.predict."""
        given = self._with_batch_size(input_fn, ModeKeys.PREDICT)
        rows = super().predict(given, predict_keys, hooks, checkpoint_path, yield_single_examples)
        with self._running(ModeKeys.PREDICT):
            yield from rows

    def experimental_export_all_saved_models(self, *args: Any, **kwargs: Any) -> bytes:
        """Export, as Estimator.experimental_export_all_saved_models.

        Raises:
            ValueError: If export_to_cpu and export_to_tpu are both False, or as Estimator.
        """
        if not self._is_exporting:
            raise ValueError("One of export_to_cpu and export_to_tpu must be true.")
        return super().experimental_export_all_saved_models(*args, **kwargs)

    @contextmanager
    def _running(self, mode: str) -> Iterator[None]:
        """Record the mode while input_fn feeds the model. An export has no mode, so it gets no batch size."""
        before, self._running_mode = self._running_mode, mode
        try:
            yield
        finally:
            self._running_mode = before

    def _with_batch_size(self, input_fn: Callable[..., Any], mode: str) -> Callable[..., Any]:
        taken = parameters_of(input_fn)
        if "params" not in taken:
            raise ValueError(
                f"input_fn ({input_fn}) does not include params argument, required by TPUEstimator to pass batch size "
                "as params['batch_size']"
            )

        def wrapped(params: Any, config: Any) -> Any:
            words = {"params": self._params_of(params, mode), "config": config, "mode": mode}
            with tf.device("/device:CPU:0"):
                return input_fn(**{name: value for name, value in words.items() if name in taken})

        return wrapped

    def _with_params(self, model_fn: Any) -> Any:
        """Return a model_fn for Estimator: it adds batch_size to params and returns an EstimatorSpec."""
        taken = parameters_of(model_fn)

        def wrapped(features: Any, labels: Any, mode: str, config: Any, params: Any) -> Any:
            if "params" not in taken:
                raise ValueError(
                    f"model_fn ({model_fn}) does not include params argument, required by TPUEstimator to pass batch "
                    "size as params['batch_size']"
                )
            if labels is not None and "labels" not in taken:
                raise ValueError("model_fn does not take labels, but input_fn returns labels.")
            given = self._params_of(params, mode if self._running_mode else None)
            given["use_tpu"] = False
            words = {"labels": labels, "mode": mode, "config": config, "params": given}
            run_log.info("Running %s on CPU/GPU", mode)
            spec = model_fn(features=features, **{name: value for name, value in words.items() if name in taken})
            return spec.as_estimator_spec() if isinstance(spec, TPUEstimatorSpec) else spec

        return wrapped

    def _params_of(self, params: Mapping[str, Any] | None, mode: str | None) -> dict[str, Any]:
        given = copy.deepcopy(dict(params or {}))
        batch_size = self._batch_sizes.get(mode) if mode is not None else None
        if batch_size is not None:
            given["batch_size"] = batch_size
        return given


def _default_tpu_config() -> Any:
    from tensorflow_estimator.python.estimator.tpu.tpu_config import TPUConfig

    return TPUConfig()
