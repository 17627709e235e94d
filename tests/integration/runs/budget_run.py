"""`python budget_run.py FOLDER BUDGET PARAMS` trains two steps of a model under a memory budget, from a file store.

PARAMS is a JSON object: `network` (a key of NETWORKS), `layers`, `width`, `batch`, and for some networks more. Prints
one JSON object: the peak memory of the process [B], or the smallest budget [B] if the given one is refused.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import tensorflow as tf

from cerebras_tensorflow import CerebrasEstimator, CSConfig, CSEstimatorSpec, CSRunConfig
from cerebras_tensorflow.errors import MemoryBudgetError

v1 = tf.compat.v1
WINDOW_BYTES = 16_000_000
SEQUENCE, VOCABULARY, IMAGE = 128, 16_000, 32


def dense(x: Any, params: Any) -> Any:
    """Square layers."""
    width = params["width"]
    for layer in range(params["layers"]):
        w = v1.get_variable(f"w{layer}", [width, width], initializer=v1.random_normal_initializer(stddev=width**-0.5))
        x = tf.tanh(tf.matmul(x, w))
    return x


def loop(x: Any, params: Any) -> Any:
    """A recurrent layer, as a while_loop whose values wait for the backward pass."""
    width = params["width"]
    w = v1.get_variable("w", [width, width], initializer=v1.random_normal_initializer(stddev=width**-0.5))

    def step(number: Any, state: Any) -> Any:
        return number + 1, tf.tanh(tf.matmul(state, w))

    return tf.while_loop(lambda number, _: number < params["layers"], step, (0, x))[1]


def convolutions(x: Any, params: Any) -> Any:
    """3 x 3 convolutions of images with `width` channels."""
    width = params["width"]
    for layer in range(params["layers"]):
        w = v1.get_variable(f"w{layer}", [3, 3, width, width], initializer=v1.random_normal_initializer(stddev=0.01))
        x = tf.nn.relu(tf.nn.conv2d(x, w, 1, "SAME"))
    return x


def language(ids: Any, params: Any) -> Any:
    """A GPT-2 shape with or without tied embeddings. Returns logits."""
    from reference_implementations.gpt2.model import Gpt2Settings, gpt2_logits

    settings = Gpt2Settings(
        vocab_size=VOCABULARY, hidden_size=params["width"], num_hidden_layers=params["layers"], num_heads=8,
        filter_size=4 * params["width"], max_position_embeddings=SEQUENCE, share_embedding_weights=params["tied"],
    )  # fmt: skip
    return gpt2_logits(ids, settings, is_training=True)


NETWORKS = {"dense": dense, "loop": loop, "convolutions": convolutions, "language": language}


def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
    """A network, and Adam with gradients clipped by their global norm."""
    y = NETWORKS[params["network"]](features["x"], params)
    if params["network"] == "language":
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=y))
    else:
        loss = tf.reduce_mean(tf.square(y - labels))
    optimizer = v1.train.AdamOptimizer(1e-4)
    gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
    clipped, _ = tf.clip_by_global_norm(gradients, 1.0)
    train_op = optimizer.apply_gradients(zip(clipped, variables, strict=True), v1.train.get_global_step())
    return CSEstimatorSpec(mode, loss=loss, train_op=train_op)


def batch_shape(params: Any) -> list[int]:
    """Return the shape of features and labels."""
    rest = {"language": [SEQUENCE], "convolutions": [IMAGE, IMAGE, params["width"]]}
    return [params["batch"], *rest.get(params["network"], [params["width"]])]


def input_fn(params: Any) -> Any:
    """Two batches."""
    shape = batch_shape(params)

    def batch(number: Any) -> Any:
        if params["network"] == "language":
            x = tf.random.stateless_uniform(shape, [1, number], 0, VOCABULARY, tf.int32)
        else:
            x = tf.random.stateless_normal(shape, [1, number])
        return {"x": x}, x

    return tf.data.Dataset.range(2).map(batch)


def main(folder: str, budget: str, params: dict[str, Any]) -> None:
    """Train two steps."""
    settings = CSConfig(
        weight_store="file",
        memory_budget=budget,
        stream_window_bytes=WINDOW_BYTES,
        micro_batch_size=params.get("micro_batch_size"),
    )
    config = CSRunConfig(cs_config=settings, save_summary_steps=None, log_step_count_steps=None)
    try:
        CerebrasEstimator(model_fn, folder, config=config, params=params).train(input_fn, steps=2)
    except MemoryBudgetError as error:
        print(json.dumps({"needed_bytes": error.needed_bytes}))
        return
    # Not ru_maxrss: in a new process, it includes the memory of the process that started it.
    with open("/proc/self/status", encoding="ascii") as file:
        most_kib = next(int(line.split()[1]) for line in file if line.startswith("VmHWM:"))
    print(json.dumps({"most_bytes": most_kib * 1024}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
