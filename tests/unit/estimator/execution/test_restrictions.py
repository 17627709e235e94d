"""Runs on a CS system refuse some settings with the published texts; runs on the CPU accept them."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from cerebras_tensorflow.compat import messages
from cerebras_tensorflow.errors import CerebrasError
from cerebras_tensorflow.estimator.config.run_config import CSRunConfig
from cerebras_tensorflow.estimator.config.run_settings import run_settings
from cerebras_tensorflow.estimator.execution import restrictions
from cerebras_tensorflow.estimator.execution.replicas import asked
from tests.unit.estimator import tiny
from tests.unit.estimator.csx_threads import use_threads

STEPS_TEXT = "When performing eval on the Cerebras System, eval_steps must be provided."
REPLICAS_TEXT = "Multi-replica training is not possible in weight_streaming execution strategy."


@pytest.fixture(autouse=True)
def visible_log() -> None:
    tf.get_logger().propagate = True
    restrictions._logged_params.clear()


def test_an_evaluation_on_the_system_needs_steps(cs_ip: str, tmp_path: Path) -> None:
    estimator = tiny.estimator(tmp_path, cs_ip=cs_ip)
    with pytest.raises(ValueError, match=STEPS_TEXT):
        estimator.evaluate(tiny.input_fn(epochs=1), use_cs=True)
    assert estimator.evaluate(tiny.input_fn(), steps=1, use_cs=True)["global_step"] == 0
    assert estimator.evaluate(tiny.input_fn(epochs=1))["global_step"] == 0


def replicas() -> dict[str, Any]:
    return {"config": messages.FullConfig(target_num_replicas=-1)}


def test_replicas_train_in_pipelined_mode_only(
    cs_ip: str, mode: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_threads(monkeypatch)
    estimator = tiny.estimator(tmp_path, cs_ip=cs_ip, stack_params=replicas())
    if mode == "weight_streaming":
        with pytest.raises(ValueError, match=REPLICAS_TEXT):
            estimator.train(tiny.input_fn(), steps=1)
        return
    with caplog.at_level(logging.INFO):
        estimator.train(tiny.input_fn(), steps=1)
        estimator.evaluate(tiny.input_fn(), steps=1, use_cs=True)
    assert re.search(r"Multi-replica training: \d replica\(s\) share each batch of 4 samples\.", caplog.text)
    assert "Multireplica is only supported in `train` mode. Disabling it for eval mode." in caplog.text


@pytest.mark.parametrize("text", ['{"targetNumReplicas": -1}', '{"target_num_replicas": -1}'])
def test_debug_args_of_the_appliance_can_request_replicas(text: str) -> None:
    debug_args = messages.DebugArgs()
    debug_args.debug_crd.pipeline_options.full_config = text
    asking = run_settings(CSRunConfig(cs_config=SimpleNamespace(debug_args=debug_args)))
    silent = run_settings(CSRunConfig(cs_config=SimpleNamespace(debug_args=messages.DebugArgs())))
    assert asked(asking, "pipelined") == -1
    assert asked(asking, "weight_streaming") == 0  # weight streaming has no pipeline options
    assert asked(silent, "pipelined") == 0


def big_model() -> Any:
    with tf.Graph().as_default() as graph:
        tf.compat.v1.get_variable("w", [11808, 1024, 256], tf.float32, initializer=tf.compat.v1.zeros_initializer())
        variables = {"w": graph.get_collection("variables")[0]}
    return SimpleNamespace(spec=SimpleNamespace(eval_metric_ops={}), saved_names=lambda: variables)


def test_a_pipelined_checkpoint_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "Calculated checkpoint size is 11808MB, but it should not exceed 9024MB"
    with pytest.raises(CerebrasError, match=text):
        restrictions.check_training(big_model(), (), True, "pipelined")
    restrictions.check_training(big_model(), (), True, "weight_streaming")
    restrictions.check_training(big_model(), (), False, "pipelined")
    monkeypatch.setenv("SKIP_CKPT_SIZE_CHECK", "1")
    restrictions.check_training(big_model(), (), True, "pipelined")


def test_params_without_effect_are_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    params = {"runconfig": {"use_cs_grad_accum": True}, "model": {"precision_opt_level": 1}}
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            tiny.estimator(tmp_path, params).train(tiny.input_fn(), steps=1)
    assert caplog.text.count("runconfig.use_cs_grad_accum=True") == 1
    assert caplog.text.count("model.precision_opt_level=1") == 1
    caplog.clear()
    restrictions._logged_params.clear()
    restrictions.note_params({"runconfig": {"use_cs_grad_accum": None}, "model": None})
    restrictions.note_params(None)
    assert not caplog.text
