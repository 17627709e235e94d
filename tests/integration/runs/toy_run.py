"""A small training script as a user writes one: python toy_run.py MODEL_DIR MAX_STEPS [key=value ...]."""

from __future__ import annotations

import functools
import hashlib
import sys
import time
from typing import Any

import numpy as np
import tensorflow as tf
import yaml

from cerebras_tensorflow import CerebrasEstimator, CSConfig, CSEstimatorSpec, CSRunConfig

v1 = tf.compat.v1


def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
    """Two layers with dropout; the loss turns into NaN at step `nan_at`."""
    if params.get("returns") == "nothing":
        return None
    wide = v1.get_variable("wide", [16, 64])
    narrow = v1.get_variable("narrow", [64, 16])
    hidden = tf.nn.relu(tf.matmul(features["x"], wide))
    if mode == "train":
        hidden = v1.nn.dropout(hidden, rate=0.2)
    loss = tf.reduce_mean(tf.square(tf.matmul(hidden, narrow) - labels))
    step = v1.train.get_global_step()
    if "nan_at" in params:
        loss += tf.where(tf.equal(step, int(params["nan_at"]) - 1), float("nan"), 0.0)
    train_op = v1.train.AdamOptimizer(1e-2).minimize(loss, step) if mode == "train" else None
    return CSEstimatorSpec(mode, loss=loss, train_op=train_op, predictions={"y": tf.matmul(hidden, narrow)})


def input_fn(params: dict[str, Any], skip: int) -> Any:
    """Batches that depend on their number only, starting with the batch of the first step of this run."""
    random = np.random.default_rng(5)
    x, y = random.normal(size=(320, 16)).astype(np.float32), random.normal(size=(320, 16)).astype(np.float32)
    data = tf.data.Dataset.from_tensor_slices(({"x": x}, y)).repeat(int(params.get("epochs", 100)))
    data = data.batch(8, drop_remainder=True).skip(skip)
    pause_s = float(params.get("pause_s", 0))
    if pause_s:

        def slow(value: Any) -> Any:
            time.sleep(pause_s)
            return value

        data = data.map(
            lambda x, y: ({"x": tf.ensure_shape(tf.numpy_function(slow, [x["x"]], tf.float32), [8, 16])}, y)
        )
    return data


def main() -> None:
    """Train, and print a digest of the variables of the last checkpoint."""
    model_dir, max_steps = sys.argv[1], int(sys.argv[2])
    params: dict[str, Any] = dict(word.split("=", 1) for word in sys.argv[3:])
    if "sparsity" in params:
        params["sparsity"] = yaml.safe_load(params["sparsity"])
    if "global_batch_size" in params:
        params["train_input"] = {"global_batch_size": int(params["global_batch_size"])}
    v1.logging.set_verbosity(v1.logging.INFO)
    config = CSRunConfig(
        cs_ip=params.get("cs_ip"),
        save_checkpoints_steps=int(params.get("save_every", 5)),
        keep_checkpoint_max=int(params.get("keep", 3)),
        checkpoint_format=params.get("format", "auto"),
        log_step_count_steps=10,
        save_summary_steps=10,
        cs_config=CSConfig(
            min_stream_bytes=1024,
            weight_store=params.get("weight_store", "file"),
            weight_store_dir=params.get("store_dir"),
            memory_budget=params.get("memory_budget") or None,
            micro_batch_size=int(params["micro_batch_size"]) if "micro_batch_size" in params else None,
            use_xla="use_xla" in params,
        ),
    )
    estimator = CerebrasEstimator(model_fn, model_dir=model_dir, config=config, params=params)
    newest = estimator.latest_checkpoint()
    skip = int(newest.removesuffix(".h5").rpartition("-")[2]) if newest else 0
    estimator.train(functools.partial(input_fn, skip=skip), max_steps=max_steps)
    digest = hashlib.sha256()
    for name in sorted(estimator.get_variable_names()):
        digest.update(name.encode() + np.ascontiguousarray(estimator.get_variable_value(name)).tobytes())
    print("weights", digest.hexdigest())


if __name__ == "__main__":
    main()
