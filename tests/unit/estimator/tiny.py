"""A tiny model, its data and an estimator on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from cerebras_tensorflow import CerebrasEstimator, CSConfig, CSEstimatorSpec, CSRunConfig

v1 = tf.compat.v1
MODES = ["pipelined", "weight_streaming"]
SAMPLES, BATCH = 24, 4


def arrays(samples: int = SAMPLES) -> tuple[np.ndarray, np.ndarray]:
    """Features (samples, 4) and labels (samples, 1), the same each time."""
    random = np.random.default_rng(1)
    return random.normal(size=(samples, 4)).astype(np.float32), random.normal(size=(samples, 1)).astype(np.float32)


def input_fn(samples: int = SAMPLES, epochs: int | None = None) -> Any:
    """An input_fn over the arrays, without end unless epochs are given."""

    def make() -> Any:
        x, y = arrays(samples)
        return tf.data.Dataset.from_tensor_slices(({"x": x}, y)).repeat(epochs).batch(BATCH, drop_remainder=True)

    return make


def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
    """Linear regression; `params["spec"]` may change the fields of the spec."""
    w = v1.get_variable("w", [4, 64], initializer=v1.random_normal_initializer(stddev=0.1))
    out = v1.get_variable("out", [64, 1], initializer=v1.random_normal_initializer(stddev=0.1))
    y = tf.matmul(tf.tanh(tf.matmul(features["x"], w)), out)
    fields: dict[str, Any] = {"predictions": {"y": y, "double": 2 * y}}
    if mode != "infer":
        error = y - labels
        fields["loss"] = tf.reduce_mean(error * error)
    if mode == "train":
        fields["train_op"] = v1.train.AdamOptimizer(0.01).minimize(fields["loss"], v1.train.get_global_step())
    fields.update(params["spec"](mode, y, labels) if params and "spec" in params else {})
    return CSEstimatorSpec(mode, **fields)


def estimator(model_dir: Path | str, params: Any = None, **settings: Any) -> CerebrasEstimator:
    """An estimator that streams whatever has more than 100 bytes."""
    settings = {"save_summary_steps": None, "log_step_count_steps": None, **settings}
    warm_start_from = settings.pop("warm_start_from", None)
    config = CSRunConfig(cs_config=CSConfig(min_stream_bytes=100), **settings)
    return CerebrasEstimator(
        model_fn, str(model_dir), config=config, params=params or {}, warm_start_from=warm_start_from
    )
