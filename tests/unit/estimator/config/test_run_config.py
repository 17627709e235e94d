"""RunConfig: defaults, replacement and refusals, as tf.estimator's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from cerebras_tensorflow import CerebrasEstimator, CSConfig, CSRunConfig, RunConfig, WarmStartSettings
from cerebras_tensorflow.errors import SettingsError
from cerebras_tensorflow.estimator.add_metrics import add_metrics
from cerebras_tensorflow.estimator.tf_estimator import Estimator


def test_the_defaults_are_those_of_tf_estimator() -> None:
    config = RunConfig()
    defaults = (config.model_dir, config.tf_random_seed, config.save_summary_steps, config.save_checkpoints_secs)
    assert defaults == (None, None, 100, 600)
    assert (config.save_checkpoints_steps, config.keep_checkpoint_max, config.log_step_count_steps) == (None, 5, 100)
    assert (config.task_type, config.task_id, config.is_chief) == ("worker", 0, True)


def test_setting_one_save_interval_disables_the_other() -> None:
    assert RunConfig(save_checkpoints_steps=7).save_checkpoints_secs is None
    assert RunConfig(save_checkpoints_secs=9).save_checkpoints_steps is None
    assert RunConfig(save_checkpoints_steps=None, save_checkpoints_secs=None).save_checkpoints_secs is None
    with pytest.raises(ValueError, match="cannot be both set"):
        RunConfig(save_checkpoints_steps=1, save_checkpoints_secs=1)


def test_replace_changes_a_copy_and_the_other_interval_with_it() -> None:
    config = RunConfig()
    changed = config.replace(save_checkpoints_steps=3, tf_random_seed=5)
    assert (changed.save_checkpoints_steps, changed.save_checkpoints_secs, changed.tf_random_seed) == (3, None, 5)
    assert (config.save_checkpoints_steps, config.save_checkpoints_secs) == (None, 600)
    with pytest.raises(ValueError, match="cannot be both set"):
        config.replace(save_checkpoints_steps=1, save_checkpoints_secs=1)


@pytest.mark.parametrize("make", [RunConfig, lambda **changes: RunConfig().replace(**changes)], ids=["new", "replace"])
@pytest.mark.parametrize("name", ["save_checkpoints_steps", "save_checkpoints_secs", "keep_checkpoint_max"])
def test_negative_numbers_are_refused(make: Any, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} should be >= 0, given: -1"):
        make(**{name: -1})


def test_unknown_settings_are_refused_by_name() -> None:
    with pytest.raises(TypeError, match="save_checkpoint_step"):
        RunConfig(save_checkpoint_step=3)
    with pytest.raises(ValueError, match="Replacing save_checkpoint_step is not supported"):
        RunConfig().replace(save_checkpoint_step=3)
    with pytest.raises(AttributeError, match="has no attribute 'max_step'"):
        _ = RunConfig().max_step


def test_model_dir_may_be_a_path_everywhere(tmp_path: Path) -> None:
    assert RunConfig(model_dir=tmp_path).model_dir == str(tmp_path)
    assert RunConfig().replace(model_dir=tmp_path).model_dir == str(tmp_path)
    estimator = CerebrasEstimator(lambda features: None, tmp_path, config=RunConfig().replace(model_dir=tmp_path))
    assert estimator.model_dir == estimator.config.model_dir == str(tmp_path)


def test_cs_run_config_keeps_its_settings_through_replace() -> None:
    cs_config = CSConfig(num_csx=2)
    config = CSRunConfig(cs_ip="10.0.0.1:9000", cs_config=cs_config, stack_params={"a": 1}, keep_checkpoint_max=2)
    changed = config.replace(model_dir="there")
    assert isinstance(changed, CSRunConfig)
    assert (changed.cs_ip, changed.cs_config, changed.stack_params) == ("10.0.0.1:9000", cs_config, {"a": 1})
    assert config.replace(cs_ip=None).cs_ip is None
    assert isinstance(CSRunConfig().cs_config, CSConfig)


def test_tf_config_names_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", '{"task": {"type": "chief", "index": 3}}')
    config = CSRunConfig()
    assert (config.task_type, config.task_id, config.is_chief) == ("chief", 3, False)


@pytest.mark.parametrize(
    "settings, text",
    [
        ({"weight_store": "disk"}, "auto, memory, servers, file"),
        ({"memory_budget": "a lot"}, "memory_budget: 'a lot' is not a size"),
        ({"memory_budget": "4GB", "weight_store": "memory"}, "keeps all weights in memory"),
        ({"min_stream_bytes": -1}, "min_stream_bytes is -1"),
        ({"stream_window_bytes": 1.5}, "stream_window_bytes is 1.5"),
    ],
)
def test_cs_config_refuses_what_it_cannot_use(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        CSConfig(**settings)


def test_settings_past_the_ninth_go_by_position_as_in_2_15() -> None:
    config = RunConfig(None, 1, 100, 5, None, None, 5, 10000, 100, None, None, "grpc", None, None, 3, 60, False)
    assert (config.save_checkpoints_steps, config.protocol) == (5, "grpc")
    assert (config.experimental_max_worker_delay_secs, config.session_creation_timeout_secs) == (3, 60)
    assert config.checkpoint_save_graph_def is False


@pytest.mark.parametrize(
    "call",
    [
        lambda: RunConfig(model_dir="hdfs://host/run"),
        lambda: CSRunConfig().replace(model_dir=Path("hdfs://host/run")),
        lambda: CSConfig(weight_store_dir="s3://bucket/store"),
        lambda: CerebrasEstimator(lambda features: None, "hdfs://host/run"),
        lambda: CerebrasEstimator(lambda features: None, compile_dir="s3://bucket/run"),
        lambda: CerebrasEstimator(lambda features: None, warm_start_from="hdfs://host/model.ckpt-5"),
        lambda: WarmStartSettings(ckpt_to_initialize_from="hdfs://host/model.ckpt-5"),
    ],
)
def test_a_url_of_an_unknown_scheme_is_refused_when_the_setting_is_made(call: Callable[[], object]) -> None:
    with pytest.raises(SettingsError, match="expected a path or a file:// URL"):
        call()


def test_a_file_url_is_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps({"model_dir": f"file://{tmp_path}"}))
    assert RunConfig().model_dir == RunConfig(model_dir=f"file://{tmp_path}").model_dir == str(tmp_path)


@pytest.mark.parametrize("text", ["null", "5", '"a"', "[]", "{"])
def test_a_tf_config_that_is_no_object_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ValueError, match=r"TF_CONFIG=.* expected a JSON object with cluster and task"):
        RunConfig()


def test_a_cluster_may_name_only_some_tasks_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = {"chief": ["a:1"], "worker": {"1": "b:1", "3": "c:1"}}
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 3}}))
    assert (RunConfig().task_type, RunConfig().task_id) == ("worker", 3)
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 4}}))
    with pytest.raises(ValueError, match="4 is not a valid task_id for task_type worker"):
        RunConfig()


def test_the_default_session_config_of_an_estimator_is_not_the_callers_in_another_one(tmp_path: Path) -> None:
    def session_config_of(estimator: CerebrasEstimator) -> Any:
        return estimator._cs_settings.session_config

    first = Estimator(lambda features: None, str(tmp_path))
    assert first.config.session_config is not None
    others = [first.config, first.config.replace(tf_random_seed=1), add_metrics(first, lambda features: {}).config]
    assert [
        session_config_of(kind(lambda features: None, config=other))
        for other in others
        for kind in (CerebrasEstimator, Estimator)
    ] == [None] * 6
    given = tf.compat.v1.ConfigProto(log_device_placement=True)
    assert (
        session_config_of(Estimator(lambda features: None, config=first.config.replace(session_config=given))) == given
    )
    default = Estimator(lambda features: None, config=RunConfig(session_config=first.config.session_config))
    assert session_config_of(default) == first.config.session_config, "the caller's, though it is like the default"
