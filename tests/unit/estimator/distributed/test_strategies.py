"""tf.distribute strategies in a RunConfig: they train and evaluate, or are refused by name."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cerebras_tensorflow import CerebrasEstimator, CSConfig, CSEstimatorSpec, CSRunConfig
from cerebras_tensorflow.errors import CheckpointError, SettingsError
from cerebras_tensorflow.estimator.config.run_config import RunConfig
from cerebras_tensorflow.estimator.config.run_settings import run_settings
from cerebras_tensorflow.estimator.distributed.unused import warn_of_unused
from cerebras_tensorflow.estimator.tf_estimator import Estimator
from cerebras_tensorflow.saver import tf_h5_saver
from tests.unit.estimator.tiny import input_fn, model_fn, v1

STRATEGIES = {
    "MirroredStrategy": lambda: tf.distribute.MirroredStrategy(["/cpu:0"]),
    "OneDeviceStrategy": lambda: tf.distribute.OneDeviceStrategy("/cpu:0"),
    "CentralStorageStrategy": lambda: v1.distribute.experimental.CentralStorageStrategy(),
    "MultiWorkerMirroredStrategy": lambda: tf.distribute.MultiWorkerMirroredStrategy(),
}


def line(features: Any, labels: Any, mode: str) -> Any:
    """A line with known initial values: a strategy's graph draws other random numbers."""
    w = v1.get_variable("w", [4, 1], initializer=v1.constant_initializer(0.5))
    y = tf.matmul(features["x"], w)
    loss = tf.reduce_mean((y - labels) ** 2)
    train_op = None
    if mode == "train":
        train_op = v1.train.AdamOptimizer(0.1).minimize(loss, v1.train.get_global_step())
    metrics = {"mae": v1.metrics.mean_absolute_error(labels, y)}
    return CSEstimatorSpec(mode, predictions=y, loss=loss, train_op=train_op, eval_metric_ops=metrics)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_with_one_replica_trains_as_without_a_strategy(tmp_path: Path, name: str) -> None:
    strategy = STRATEGIES[name]()
    plain = Estimator(line, str(tmp_path / "plain"), RunConfig(tf_random_seed=1))
    config = RunConfig(tf_random_seed=1, train_distribute=strategy, eval_distribute=strategy)
    spread = Estimator(line, str(tmp_path / "spread"), config)
    for estimator in (plain, spread):
        estimator.train(input_fn(), max_steps=3)
    for variable in plain.get_variable_names():
        np.testing.assert_allclose(
            plain.get_variable_value(variable), spread.get_variable_value(variable), rtol=1e-5, atol=1e-6
        )
    expected, metrics = plain.evaluate(input_fn(epochs=1)), spread.evaluate(input_fn(epochs=1))
    assert sorted(metrics) == ["global_step", "loss", "mae"]
    np.testing.assert_allclose([metrics[key] for key in metrics], [expected[key] for key in metrics], rtol=1e-5)


@pytest.mark.parametrize("setting", ["train_distribute", "eval_distribute"])
@pytest.mark.parametrize("value, text", [(3, "must be a tf.distribute.Strategy, given: 3"), ("TPU", "there is no TPU")])
def test_a_strategy_that_cannot_run_is_an_error_that_names_the_setting(
    tmp_path: Path, setting: str, value: Any, text: str
) -> None:
    class TPUStrategyV2:
        extended = make_input_fn_iterator = None

    config = RunConfig(**{setting: TPUStrategyV2() if value == "TPU" else value})
    estimator = Estimator(model_fn, str(tmp_path), config)
    with pytest.raises(ValueError, match=f"{setting}.*{text}"):
        estimator.train(input_fn(), steps=1) if setting == "train_distribute" else estimator.evaluate(input_fn(), 1)


def test_metrics_that_a_strategy_cannot_compute_are_refused(tmp_path: Path) -> None:
    def keras(mode: str, y: Any, labels: Any) -> dict[str, Any]:
        return {"eval_metric_ops": {"mine": tf.keras.metrics.Mean()}}

    def host(mode: str, y: Any, labels: Any) -> dict[str, Any]:
        return {"host_call": (lambda values: {"mean": v1.metrics.mean(values)}, [y])}

    config = RunConfig(eval_distribute=tf.distribute.OneDeviceStrategy("/cpu:0"))
    for spec, text in ((keras, "Metric mine is a Keras metric"), (host, "host_call cannot be used with eval_distr")):
        with pytest.raises(ValueError, match=text):
            Estimator(model_fn, str(tmp_path), config, {"spec": spec}).evaluate(input_fn(), 1)


def test_a_checkpoint_that_tensorflow_cannot_read_is_refused_by_name(tmp_path: Path) -> None:
    tf_h5_saver.save(tmp_path / "w.h5", {"w": np.zeros([4, 64], np.float32)})
    config = RunConfig(eval_distribute=tf.distribute.OneDeviceStrategy("/cpu:0"))
    estimator = Estimator(model_fn, str(tmp_path / "model"), config)
    for path, text in ((str(tmp_path / "w.h5"), "is an HDF5 checkpoint"), ("s3://bucket/w", "is in object storage")):
        with pytest.raises(SettingsError, match=f"{text}.*h5-to-tensorflow"):
            estimator.evaluate(input_fn(), 1, checkpoint_path=path)
    with pytest.raises(CheckpointError, match="not a TensorFlow checkpoint"):
        estimator.evaluate(input_fn(), 1, checkpoint_path=str(tmp_path / "none"))


def test_settings_that_a_strategy_does_not_use_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = run_settings(CSRunConfig(cs_config=CSConfig(memory_budget="1GB", weight_store="file")))
    with caplog.at_level(logging.WARNING, "tensorflow"):
        warn_of_unused(settings, {"eval_input": {"micro_batch_size": 2}}, "eval", sparsifier=None)
        warn_of_unused(run_settings(RunConfig()), {"train_input": {"micro_batch_size": 2}}, "eval")
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.endswith("session: micro_batch_size=2, weight_store='file', memory_budget=1000000000.")


def test_settings_of_run_config_that_cannot_be_used_are_refused() -> None:
    class ParameterServerStrategyV2:
        """Stands in for TensorFlow's class, which needs a cluster."""

    class Remote:
        train_distribute = eval_distribute = None
        remote_cluster = "grpc://a:1"

    class Both:
        train_distribute = eval_distribute = tf.distribute.OneDeviceStrategy("/cpu:0")

    with pytest.raises(ValueError, match=r"Please use `tf.compat.v1.distribute.experimental.ParameterServerStrategy`"):
        RunConfig(train_distribute=ParameterServerStrategyV2())
    with pytest.raises(ValueError, match=r"remote_cluster is not supported.* Start the program on each machine"):
        RunConfig(experimental_distribute=Remote())
    with pytest.raises(ValueError, match=r"Either `train_distribute` or `experimental_distribute.train_distribute`"):
        RunConfig(train_distribute=Both.train_distribute, experimental_distribute=Both())
    with pytest.raises(AttributeError, match="train_distribute"):
        RunConfig(experimental_distribute=object())
    assert RunConfig(experimental_distribute=Both()).eval_distribute is Both.eval_distribute


def test_a_strategy_in_a_cluster_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = {"chief": ["127.0.0.1:1"], "worker": ["127.0.0.1:2"]}
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": jobs, "task": {"type": "chief", "index": 0}}))
    estimator = Estimator(model_fn, str(tmp_path), RunConfig(train_distribute=strategy))
    with pytest.raises(ValueError, match=r"OneDeviceStrategy cannot train in a cluster.*Leave train_distribute out"):
        estimator.train(input_fn(), steps=1)


@pytest.mark.parametrize("mode", ["pipelined"], indirect=True)
def test_a_strategy_does_not_run_on_a_cs_system(tmp_path: Path, cs_ip: str) -> None:
    config = CSRunConfig(cs_ip=cs_ip, train_distribute=tf.distribute.OneDeviceStrategy("/cpu:0"))
    with pytest.raises(SettingsError, match=r"train_distribute.*CS system"):
        CerebrasEstimator(model_fn, str(tmp_path), config=config).train(input_fn(), steps=1)
