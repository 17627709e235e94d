"""An open-source port of the Cerebras TensorFlow-Estimator stack. Names load on first use: importing this is cheap."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from cerebras_tensorflow.compat import activate
from cerebras_tensorflow.garbage import no_garbage_collection
from cerebras_tensorflow.version import __version__

if TYPE_CHECKING:
    from cerebras_tensorflow.estimator.config.cs_config import CSConfig
    from cerebras_tensorflow.estimator.config.run_config import CSRunConfig, RunConfig
    from cerebras_tensorflow.estimator.estimator import CerebrasEstimator
    from cerebras_tensorflow.estimator.mode_keys import ModeKeys
    from cerebras_tensorflow.estimator.spec import CSEstimatorSpec, EstimatorSpec
    from cerebras_tensorflow.estimator.training.warm_start import WarmStartSettings

_HOMES = {
    "CSConfig": "cerebras_tensorflow.estimator.config.cs_config",
    "CSEstimatorSpec": "cerebras_tensorflow.estimator.spec",
    "CSRunConfig": "cerebras_tensorflow.estimator.config.run_config",
    "CerebrasEstimator": "cerebras_tensorflow.estimator.estimator",
    "EstimatorSpec": "cerebras_tensorflow.estimator.spec",
    "ModeKeys": "cerebras_tensorflow.estimator.mode_keys",
    "RunConfig": "cerebras_tensorflow.estimator.config.run_config",
    "WarmStartSettings": "cerebras_tensorflow.estimator.training.warm_start",
    "get_streaming_batch_size": "cerebras_tensorflow.estimator.config.streaming_batch",
}

__all__ = [
    "CSConfig",
    "CSEstimatorSpec",
    "CSRunConfig",
    "CerebrasEstimator",
    "EstimatorSpec",
    "ModeKeys",
    "RunConfig",
    "WarmStartSettings",
    "__version__",
    "get_streaming_batch_size",
]


activate.names()


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        with no_garbage_collection():
            return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
