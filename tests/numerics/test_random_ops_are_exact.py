"""Random ops of every kind give the same training in both modes, after a resume, and between two equal runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cerebras_tensorflow import CerebrasEstimator, CSConfig, CSEstimatorSpec, CSRunConfig

v1 = tf.compat.v1
BATCH, WIDTH = 4, 32


@pytest.fixture(autouse=True)
def private_home(home: Path) -> Path:
    """No test touches the user's simulated systems."""
    return home


def noises() -> list[Any]:
    """One scalar from each random op with state, some in loops, functions and branches."""
    generator = tf.random.Generator.from_seed(3)
    image = tf.constant([64, 48, 3]), tf.constant([[[0.1, 0.1, 0.9, 0.9]]])

    def drawn() -> Any:
        return tf.random.normal([WIDTH]) + tf.random.gamma([], 2.0)

    def scanned() -> Any:
        return tf.reduce_sum(tf.map_fn(lambda _: drawn(), tf.zeros([3]), fn_output_signature=tf.float32))

    return [
        tf.reduce_sum(tf.random.gamma([5], [0.5, 2.0])),
        tf.reduce_sum(tf.random.poisson([5], [3.0, 9.0])),
        tf.cast(tf.reduce_sum(tf.random.categorical(tf.zeros([2, 9]), 5)), tf.float32),
        tf.random.shuffle(tf.range(99.0))[0],
        tf.raw_ops.ParameterizedTruncatedNormal(
            shape=[3], means=1.0, stdevs=1.0, minvals=0.0, maxvals=2.0, seed=1, seed2=2
        )[0],
        tf.cast(tf.image.sample_distorted_bounding_box(*image, seed=1, min_object_covered=0.1)[0][0], tf.float32),
        tf.reduce_sum(tf.random.uniform([7])),
        tf.reduce_sum(tf.function(drawn)()),
        scanned(),
        tf.function(scanned)(),
        tf.cond(tf.random.uniform([]) < 0.5, scanned, lambda: tf.reduce_sum(drawn())),
        generator.normal([]),
    ]


def model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
    """A regression whose every weight learns from another noise, with dropout inside a function and a loop."""
    weight = v1.get_variable("weight", [WIDTH, WIDTH], initializer=v1.random_normal_initializer(stddev=0.3))
    x = tf.matmul(features, weight)
    x = tf.function(lambda x: tf.nn.dropout(x, 0.2))(x)
    x = tf.while_loop(lambda n, _: n < 3, lambda n, x: (n + 1, tf.nn.dropout(x, 0.2)), [0, x])[1]
    loss = tf.reduce_mean(tf.square(x - labels))
    for number, noise in enumerate(noises()):
        learned = v1.get_variable(f"noise_{number}", [], initializer=v1.zeros_initializer())
        loss += learned * noise
    train_op = v1.train.AdamOptimizer(0.01).minimize(loss, v1.train.get_global_step())
    return CSEstimatorSpec(mode, loss=loss, train_op=train_op)


def input_fn(params: Any) -> Any:
    """The same batch for ever."""
    random = np.random.default_rng(2)
    arrays = [random.normal(size=(BATCH, WIDTH)).astype(np.float32) for _ in range(2)]
    return tf.data.Dataset.from_tensors(tuple(arrays)).repeat()


def trained(folder: Path, *steps: int) -> dict[str, bytes]:
    """Train in several runs, each of which resumes the one before; return all variables."""
    config = CSRunConfig(
        tf_random_seed=5,
        cs_config=CSConfig(min_stream_bytes=1024, weight_store="file", weight_store_dir=str(folder / "store")),
        save_summary_steps=None,
        log_step_count_steps=None,
    )
    for count in steps:
        run = CerebrasEstimator(model_fn, str(folder), config=config, params={}).train(input_fn, steps=count)
    return {name: run.get_variable_value(name).tobytes() for name in run.get_variable_names()}


def test_modes_resumed_runs_and_equal_runs_agree_in_every_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CEREBRAS_EXECUTION_MODE", "pipelined")
    expected = trained(tmp_path / "whole", 4)
    assert len({value for name, value in expected.items() if name.startswith("noise_") and "/" not in name}) > 10
    assert trained(tmp_path / "resumed", 1, 3) == expected
    monkeypatch.setenv("CEREBRAS_EXECUTION_MODE", "weight_streaming")
    assert trained(tmp_path / "streamed", 3, 1) == expected


def sampling_model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
    """A loss with a candidate sampler, which has no stateless counterpart."""
    weight = v1.get_variable("weight", [9, WIDTH], initializer=v1.random_normal_initializer(stddev=0.3))
    ids = tf.zeros([BATCH, 1], tf.int64)
    loss = tf.reduce_mean(tf.nn.nce_loss(weight, tf.zeros([9]), ids, features, num_sampled=2, num_classes=9))
    train_op = v1.train.GradientDescentOptimizer(0.1).minimize(loss, v1.train.get_global_step())
    return CSEstimatorSpec(mode, loss=loss, train_op=train_op)


def test_compiling_warns_of_ops_that_are_not_repeatable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CEREBRAS_EXECUTION_MODE", "pipelined")
    config = CSRunConfig(save_summary_steps=None, log_step_count_steps=None)
    with caplog.at_level("WARNING"):
        CerebrasEstimator(sampling_model_fn, str(tmp_path), config=config, params={}).train(input_fn, steps=1)
    (warning,) = [record.getMessage() for record in caplog.records if "Sampler" in record.getMessage()]
    assert "LogUniformCandidateSampler" in warning and "sampled_values" in warning
    assert "test_random_ops_are_exact.py:" in warning, "the line that made it"
