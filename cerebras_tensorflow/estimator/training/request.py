"""The arguments of a call of train."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cerebras_tensorflow.config.work_folder import work_folder
from cerebras_tensorflow.estimator.config.run_settings import RunSettings
from cerebras_tensorflow.estimator.model.sparse_weights import SparseChoice
from cerebras_tensorflow.estimator.training.warm_start import WarmStartSettings


@dataclass(frozen=True)
class TrainingRequest:
    """The arguments of CerebrasEstimator.train, with the settings of the estimator.

    Attributes:
        model_fn, params, settings, model_dir, compile_dir, warm_start: From the estimator.
        input_fn, hooks, listeners: From the caller.
        steps: Number of steps to train; None: see last_step.
        last_step: Global step at which to stop; None: when the input ends.
        is_cerebras: Whether labels of -1 give no loss and no gradient, and the run is saved even without an interval.
        sparsity: The sparse weights; None: all are dense.
        on_ready: Called once, in the chief: the session is made, so all checks are passed, and the first step is next.
    """

    model_fn: Callable[..., Any]
    input_fn: Callable[..., Any]
    params: Any
    settings: RunSettings
    model_dir: str
    compile_dir: str
    warm_start: WarmStartSettings | None
    hooks: Sequence[Any]
    listeners: Sequence[Any]
    steps: int | None
    last_step: int | None
    is_cerebras: bool = False
    sparsity: SparseChoice | None = None
    on_ready: Callable[[], None] | None = None

    @property
    def work_folder(self) -> str:
        """Folder of event files, reports and the weight store; model_dir itself unless that is a URL."""
        return work_folder(self.model_dir)
