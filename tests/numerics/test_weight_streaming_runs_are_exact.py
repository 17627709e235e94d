"""Whole runs of the Estimator give the same bits in both modes, with every store and with spilled values."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cerebras_tensorflow import CerebrasEstimator, CSConfig, CSEstimatorSpec, CSRunConfig
from cerebras_tensorflow.errors import MemoryBudgetError
from cerebras_tensorflow.units import parse_size

v1 = tf.compat.v1
BATCH, SEQUENCE, VOCABULARY, HIDDEN = 4, 8, 64, 32
ROUNDING_BYTES = 64_000_000  # the compiler rounds the process's memory up to a multiple of this
STREAMED_FROM: dict[str, dict[str, Any]] = {
    "host memory": {"weight_store": "memory"},
    "a mapped file": {"weight_store": "file"},
    "a plain file": {"weight_store": "file", "memory_budget": "1000GB"},
}
RESIDENCES = {"host memory": "host memory", "a mapped file": "mapped file", "a plain file": "store"}


@pytest.fixture(autouse=True)
def private_home(home: Path) -> Path:
    """No test touches the user's simulated systems."""
    return home


def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
    """Two layers between tied embeddings; the logits are what it predicts."""
    table_VH = v1.get_variable("table", [VOCABULARY, HIDDEN], initializer=v1.random_normal_initializer(stddev=0.3))
    x_BSH = tf.nn.embedding_lookup(table_VH, features["ids"])
    for layer in range(2):
        w = v1.get_variable(f"w{layer}", [HIDDEN, HIDDEN], initializer=v1.random_normal_initializer(stddev=0.3))
        x_BSH = tf.tanh(tf.tensordot(x_BSH, w, 1))
        if mode == "train":
            x_BSH = v1.nn.dropout(x_BSH, rate=0.1)
    logits_BSV = tf.tensordot(x_BSH, table_VH, [[2], [1]])
    if mode == "infer":
        return CSEstimatorSpec(mode, predictions={"logits": logits_BSV})
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits_BSV))
    right = v1.metrics.accuracy(labels, tf.argmax(logits_BSV, -1))
    train_op = v1.train.AdamOptimizer(0.01).minimize(loss, v1.train.get_global_step())
    return CSEstimatorSpec(mode, loss=loss, train_op=train_op, eval_metric_ops={"accuracy": right})


def input_fn(params: Any) -> Any:
    """Eight batches, the same each time."""
    random = np.random.default_rng(2)
    ids, labels = (random.integers(0, VOCABULARY, (8 * BATCH, SEQUENCE)).astype(np.int32) for _ in range(2))
    return tf.data.Dataset.from_tensor_slices(({"ids": ids}, labels)).batch(BATCH, drop_remainder=True)


def estimator(folder: Path, model: Any = model_fn, **settings: Any) -> CerebrasEstimator:
    settings = {"min_stream_bytes": 1024, "weight_store_dir": str(folder / "store"), **settings}
    config = CSRunConfig(cs_config=CSConfig(**settings), save_summary_steps=None, log_step_count_steps=None)
    return CerebrasEstimator(model, str(folder), config=config, params={})


def weights_of(run: CerebrasEstimator) -> dict[str, bytes]:
    return {name: run.get_variable_value(name).tobytes() for name in run.get_variable_names()}


def manifests(folder: Path) -> list[dict[str, Any]]:
    """The manifests of the programs that runs compiled into a folder."""
    return [json.loads(path.read_text()) for path in folder.glob("tfcs_*/program.json")]


def test_training_evaluation_and_prediction_agree_with_every_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def outcome(folder: Path, mode: str, **settings: Any) -> tuple[Any, ...]:
        monkeypatch.setenv("CEREBRAS_EXECUTION_MODE", mode)
        run = estimator(folder, **settings).train(input_fn, steps=3)
        results = {name: np.asarray(value).tobytes() for name, value in run.evaluate(input_fn).items()}
        logits = [sample["logits"].tobytes() for sample in run.predict(input_fn)]
        return weights_of(run), results, logits

    expected = outcome(tmp_path / "pipelined", "pipelined")
    assert len(expected[2]) == 8 * BATCH and set(expected[1]) == {"loss", "accuracy", "global_step"}
    for name, settings in STREAMED_FROM.items():
        folder = tmp_path / name
        assert outcome(folder, "weight_streaming", **settings) == expected, name
        programs = manifests(folder)
        assert len(programs) == 3  # of training, evaluation and prediction
        for program in programs:
            streamed = {spec["name"] for spec in program["streamed"]}
            assert {"table", "w0", "w1"} <= streamed
            assert program["residence"] == RESIDENCES[name]


def deep_model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
    """Cheap layers, each of which leaves two values of 4 MB for the backward pass."""
    x = tf.cast(tf.tile(tf.reshape(features["ids"], [-1, 1]), [1, 32 * 1024]), tf.float32) / VOCABULARY
    for layer in range(24):
        gain = v1.get_variable(f"gain{layer}", [32 * 1024], initializer=v1.random_normal_initializer(1.0, 0.1))
        x = tf.sin(x * gain)
    loss = tf.reduce_mean(x * x)
    train_op = v1.train.AdamOptimizer(0.01).minimize(loss, v1.train.get_global_step())
    return CSEstimatorSpec(mode, loss=loss, train_op=train_op)


def smallest_budget(folder: Path, **settings: Any) -> int:
    """The smallest sufficient budget [B], from the error for a budget of 1 MB. Its text names one that suffices."""
    with pytest.raises(MemoryBudgetError) as raised:
        estimator(folder, deep_model_fn, memory_budget="1MB", **settings).train(input_fn, steps=2)
    match = re.match(r"memory_budget is 1\.0 MB, and this step needs (?:at least )?([\d.]+ [MG]B)", str(raised.value))
    assert match, str(raised.value)
    assert not [path for path in folder.rglob("*") if path.is_file()]  # refused before anything is written
    assert parse_size(match[1]) >= raised.value.needed_bytes
    return raised.value.needed_bytes


def test_a_run_within_a_budget_spills_and_ends_with_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CEREBRAS_EXECUTION_MODE", "pipelined")
    pipelined = estimator(tmp_path / "pipelined", deep_model_fn).train(input_fn, steps=2)
    monkeypatch.setenv("CEREBRAS_EXECUTION_MODE", "weight_streaming")
    for name, settings in {"streamed": {}, "resident": {"min_stream_bytes": 1 << 30}}.items():
        # The process grows with each run.
        budget_bytes = smallest_budget(tmp_path / "refused", **settings) + ROUNDING_BYTES
        run = estimator(tmp_path / name, deep_model_fn, memory_budget=budget_bytes, **settings).train(input_fn, steps=2)
        (program,) = manifests(tmp_path / name)
        assert bool(program["streamed"]) == (name == "streamed")
        assert sum(spec["num_bytes"] for spec in program["spilled"]) > 50_000_000
        assert weights_of(run) == weights_of(pipelined)
    assert not manifests(tmp_path / "refused")


def test_the_error_of_a_pipelined_run_beyond_its_budget_names_one_that_suffices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CEREBRAS_EXECUTION_MODE", "pipelined")
    budget_bytes = smallest_budget(tmp_path / "refused") + ROUNDING_BYTES
    run = estimator(tmp_path / "enough", deep_model_fn, memory_budget=budget_bytes).train(input_fn, steps=1)
    assert run.get_variable_value("global_step") == 1
