"""This project: reference GPT-2 in weight streaming, from a file store, within a memory budget. csrun_wse starts it."""

from __future__ import annotations

import time
from typing import Any

import tensorflow as tf
from peers.shape import LEARNING_RATE, Work, batch, report, work

from cerebras_tensorflow import CerebrasEstimator, CSConfig, CSRunConfig
from reference_implementations.gpt2.model import model_fn


def params_of(one: Work) -> dict[str, Any]:
    """Return the params of the reference model."""
    model = {
        "vocab_size": one.vocabulary, "hidden_size": one.hidden, "num_hidden_layers": one.layers,
        "num_heads": one.heads, "filter_size": 4 * one.hidden, "max_position_embeddings": max(1024, one.sequence),
        "share_embedding_weights": True,
    }  # fmt: skip
    return {"model": model, "optimizer": {"optimizer_type": "adam", "learning_rate": LEARNING_RATE}}


class Clock(tf.compat.v1.train.SessionRunHook):
    """Notes the time and the loss of each step."""

    def __init__(self) -> None:
        self.loss: Any = None
        self.begins: list[float] = []
        self.ends: list[float] = []
        self.losses: list[float] = []

    def before_run(self, _context: Any) -> Any:
        """Fetch the loss."""
        self.begins.append(time.perf_counter())
        return tf.compat.v1.train.SessionRunArgs(self.loss)

    def after_run(self, _context: Any, values: Any) -> None:
        """Note the step."""
        self.ends.append(time.perf_counter())
        self.losses.append(float(values.results))


def main() -> None:
    """Run the part of the benchmark that the command line asks for."""
    one, clock = work(), Clock()

    def timed_model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
        spec = model_fn(features, labels, mode, params)
        clock.loss = spec.loss
        return spec

    def input_fn() -> Any:
        ids = batch(one).astype("int32")
        features = {"input_ids": ids, "input_mask": (ids >= 0).astype("int32")}
        return tf.data.Dataset.from_tensors((features, ids)).repeat()

    config = CSRunConfig(
        cs_config=CSConfig(weight_store="file", memory_budget=one.budget_bytes),
        tf_random_seed=1, save_checkpoints_steps=1_000_000, keep_checkpoint_max=1,
        save_summary_steps=None, log_step_count_steps=None,
    )  # fmt: skip
    estimator = CerebrasEstimator(timed_model_fn, model_dir=str(one.state), config=config, params=params_of(one))
    estimator.train(input_fn, steps=one.steps, hooks=[clock])
    save_s = time.perf_counter() - clock.ends[-1]  # a run of this project ends with a save
    times = [round(end_s - begin_s, 3) for begin_s, end_s in zip(clock.begins, clock.ends, strict=True)]
    report(clock.begins[0], times, clock.losses, save_s)


if __name__ == "__main__":
    main()
