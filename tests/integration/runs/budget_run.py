"""`python budget_run.py FOLDER BUDGET LAYERS WIDTH` trains a deep network whose gradients wait for their global norm.

Prints one JSON object: the peak memory of the process [B].
"""

from __future__ import annotations

import json
import sys
from typing import Any

import tensorflow as tf

from cerebras_tensorflow import CerebrasEstimator, CSConfig, CSEstimatorSpec, CSRunConfig

v1 = tf.compat.v1
BATCH = 4096


def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
    """Square layers, and Adam with gradients clipped by their global norm."""
    width, x = params["width"], features["x"]
    for layer in range(params["layers"]):
        w = v1.get_variable(f"w{layer}", [width, width], initializer=v1.random_normal_initializer(stddev=width**-0.5))
        x = tf.tanh(tf.matmul(x, w))
    loss = tf.reduce_mean(tf.square(x - labels))
    optimizer = v1.train.AdamOptimizer(1e-4)
    gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
    clipped, _ = tf.clip_by_global_norm(gradients, 1.0)
    train_op = optimizer.apply_gradients(zip(clipped, variables, strict=True), v1.train.get_global_step())
    return CSEstimatorSpec(mode, loss=loss, train_op=train_op)


def input_fn(params: Any) -> Any:
    """Two batches."""

    def batch(number: Any) -> Any:
        x = tf.random.stateless_normal([BATCH, params["width"]], [1, number])
        return {"x": x}, x

    return tf.data.Dataset.range(2).map(batch)


def main(folder: str, budget: str, layers: str, width: str) -> None:
    """Train two steps."""
    settings = CSConfig(weight_store="file", memory_budget=budget, stream_window_bytes=16_000_000)
    config = CSRunConfig(cs_config=settings, save_summary_steps=None, log_step_count_steps=None)
    params = {"layers": int(layers), "width": int(width)}
    CerebrasEstimator(model_fn, folder, config=config, params=params).train(input_fn, steps=2)
    # Not ru_maxrss: in a new process, it includes the memory of the process that started it.
    with open("/proc/self/status", encoding="ascii") as file:
        most_kib = next(int(line.split()[1]) for line in file if line.startswith("VmHWM:"))
    print(json.dumps({"most_bytes": most_kib * 1024}))


if __name__ == "__main__":
    main(*sys.argv[1:])
