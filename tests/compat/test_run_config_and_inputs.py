"""RunConfig and the array inputs, as tf.estimator 2.15 documents them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import cerebras_tensorflow

Config = tf.estimator.RunConfig
numpy_input_fn = tf.compat.v1.estimator.inputs.numpy_input_fn
pandas_input_fn = tf.compat.v1.estimator.inputs.pandas_input_fn
DEFAULTS = {
    "model_dir": None,
    "save_summary_steps": 100,
    "save_checkpoints_steps": None,
    "save_checkpoints_secs": 600,
    "keep_checkpoint_max": 5,
    "keep_checkpoint_every_n_hours": 10000,
    "log_step_count_steps": 100,
    "train_distribute": None,
    "eval_distribute": None,
    "device_fn": None,
    "protocol": None,
    "session_creation_timeout_secs": 7200,
    "checkpoint_save_graph_def": True,
    "task_type": "worker",
    "task_id": 0,
    "is_chief": True,
    "master": "",
    "evaluation_master": "",
    "num_ps_replicas": 0,
    "num_worker_replicas": 1,
    "global_id_in_cluster": 0,
    "service": None,
}
CLUSTER = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}


@pytest.mark.parametrize("kind", [Config, cerebras_tensorflow.CSRunConfig], ids=["RunConfig", "CSRunConfig"])
@pytest.mark.parametrize("name", sorted(DEFAULTS))
def test_defaults(kind: Any, name: str) -> None:
    assert getattr(kind(), name) == DEFAULTS[name]


@pytest.mark.parametrize(
    "name, value",
    [
        ("save_summary_steps", -1),
        ("save_checkpoints_steps", -1),
        ("save_checkpoints_secs", -1),
        ("keep_checkpoint_max", -1),
        ("keep_checkpoint_every_n_hours", 0),
        ("log_step_count_steps", 0),
        ("tf_random_seed", 1.5),
        ("tf_random_seed", "1"),
        ("session_config", 3),
        ("device_fn", 3),
        ("device_fn", lambda: None),
        ("device_fn", lambda other: None),
    ],
)
def test_values_out_of_range_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        Config(**{name: value})
    with pytest.raises(ValueError, match=name):
        Config().replace(**{name: value})


@pytest.mark.parametrize(
    "name", ["tf_random_seed", "save_summary_steps", "keep_checkpoint_max", "log_step_count_steps"]
)
def test_a_setting_may_be_none(name: str) -> None:
    assert getattr(Config(**{name: None}), name) is None


def test_both_intervals_are_refused() -> None:
    with pytest.raises(ValueError, match="`save_checkpoints_steps` and `save_checkpoints_secs` cannot be both set"):
        Config(save_checkpoints_steps=1, save_checkpoints_secs=1)


STEPS, SECONDS = "save_checkpoints_steps", "save_checkpoints_secs"


@pytest.mark.parametrize("name, other", [(STEPS, SECONDS), (SECONDS, STEPS)])
def test_one_interval_unsets_the_other(name: str, other: str) -> None:
    assert getattr(Config(**{name: 3}), other) is None
    assert getattr(Config(**{other: 5}).replace(**{name: 3}), other) is None


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(TypeError, match="save_step"):
        Config(save_step=3)
    with pytest.raises(ValueError, match="Replacing task_id is not supported"):
        Config().replace(task_id=3)


def test_replace_makes_a_copy() -> None:
    first = Config(tf_random_seed=3)
    second = first.replace(tf_random_seed=4, model_dir="m")
    assert (first.tf_random_seed, second.tf_random_seed, first.model_dir, second.model_dir) == (3, 4, None, "m")


@pytest.mark.parametrize("name", ["tf_random_seed", "model_dir", "is_chief"])
def test_settings_are_read_only(name: str) -> None:
    if name == "tf_random_seed":
        name = "task_id"
    with pytest.raises(AttributeError):
        setattr(Config(), name, 3)


@pytest.mark.parametrize(
    "kind, index, is_chief, number",
    [("chief", 0, True, 0), ("worker", 0, False, 1), ("worker", 1, False, 2), ("ps", 0, False, 3)],
)
def test_tf_config(monkeypatch: pytest.MonkeyPatch, kind: str, index: int, is_chief: bool, number: int) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": CLUSTER, "task": {"type": kind, "index": index}}))
    config = Config()
    assert (config.task_type, config.task_id, config.is_chief) == (kind, index, is_chief)
    assert (config.num_ps_replicas, config.num_worker_replicas) == (1, 3)
    assert config.global_id_in_cluster == number
    assert config.cluster_spec.as_dict() == CLUSTER


def test_cs_run_config_defaults_to_seed_1() -> None:
    assert Config().tf_random_seed is None
    assert cerebras_tensorflow.CSRunConfig().tf_random_seed == 1
    assert cerebras_tensorflow.CSRunConfig(tf_random_seed=None).tf_random_seed is None


def test_an_evaluator_is_outside_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": CLUSTER, "task": {"type": "evaluator", "index": 0}}))
    config = Config()
    assert (config.is_chief, config.num_ps_replicas, config.num_worker_replicas) == (False, 0, 0)
    assert config.global_id_in_cluster is None
    assert config.cluster_spec.as_dict() == {}


def test_cs_run_config_has_task_id_0() -> None:
    assert cerebras_tensorflow.CSRunConfig(cs_ip="10.0.0.1:9000").task_id == 0


# array inputs


def rows(input_fn: Callable[[], Any]) -> list[Any]:
    """All batches of an input_fn, run in a graph of its own."""
    batches = []
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.set_random_seed(1)
        batch = input_fn()
        session.run(tf.compat.v1.tables_initializer())
        while True:
            try:
                batches.append(session.run(batch))
            except tf.errors.OutOfRangeError:
                return batches


X = np.arange(10.0).reshape(5, 2)
Y = np.arange(5)


@pytest.mark.parametrize("x", [X, {"a": X, "b": Y}], ids=["array", "dict"])
@pytest.mark.parametrize("y", [None, Y, {"y": Y}], ids=["none", "array", "dict"])
def test_numpy_inputs_keep_their_form(x: Any, y: Any) -> None:
    (batch,) = rows(numpy_input_fn(x, y, batch_size=8, shuffle=False))
    expected = x if y is None else (x, y)
    tf.nest.assert_same_structure(batch, expected)
    for one, other in zip(tf.nest.flatten(batch), tf.nest.flatten(expected), strict=True):
        assert np.array_equal(one, other)


def test_numpy_inputs_have_their_keys_in_order() -> None:
    (batch,) = rows(numpy_input_fn({"b": X, "a": Y}, None, 8, shuffle=False))
    assert list(batch) == ["a", "b"]


@pytest.mark.parametrize("size, epochs, lengths", [(2, 1, [2, 2, 1]), (5, 1, [5]), (4, 2, [4, 4, 2]), (10, 3, [10, 5])])
def test_batches_continue_across_epochs(size: int, epochs: int, lengths: list[int]) -> None:
    assert [len(batch) for batch in rows(numpy_input_fn(X, None, size, epochs, False))] == lengths


def test_shuffling_keeps_all_rows() -> None:
    values = np.concatenate(rows(numpy_input_fn(np.arange(100), None, 7, 1, True)))
    assert sorted(values) == list(range(100))
    assert list(values) != list(range(100))


@pytest.mark.parametrize(
    "arguments, error, text",
    [
        ({"x": X}, ValueError, "shuffle must be provided and explicitly set as boolean"),
        ({"x": X, "shuffle": 1}, ValueError, "shuffle must be provided and explicitly set as boolean"),
        ({"x": [1, 2], "shuffle": True}, TypeError, "x must be a dict or array; got list"),
        ({"x": {}, "shuffle": True}, ValueError, "x cannot be an empty"),
        ({"x": X, "y": {}, "shuffle": True}, ValueError, "y cannot be empty dict, use None instead"),
        ({"x": X, "y": Y[:3], "shuffle": True}, ValueError, "Length of tensors in x and y is mismatched"),
        ({"x": {"a": X, "b": Y[:2]}, "shuffle": True}, ValueError, "Length of tensors in x and y is mismatched"),
    ],
)
def test_malformed_arrays_are_refused(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        numpy_input_fn(**arguments)()


def test_pandas_inputs() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1.0, 2.0, 3.0], "b": [4, 5, 6]})
    labels = pandas.Series([7, 8, 9])
    (batch,) = rows(pandas_input_fn(frame, labels, shuffle=False))
    assert batch[0]["a"].tolist() == [1.0, 2.0, 3.0]
    assert batch[0]["b"].tolist() == [4, 5, 6]
    assert batch[1].tolist() == [7, 8, 9]
    (alone,) = rows(pandas_input_fn(frame, shuffle=False))
    assert sorted(alone) == ["a", "b"]


def test_malformed_frames_are_refused() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1.0, 2.0]})
    with pytest.raises(ValueError, match="Index for x and y are mismatched"):
        pandas_input_fn(frame, pandas.Series([1, 2], index=[3, 4]), shuffle=False)
    with pytest.raises(ValueError, match="Cannot use name a for target column"):
        pandas_input_fn(frame, pandas.Series([1, 2]), shuffle=False, target_column="a")
    with pytest.raises(TypeError, match="x must be a pandas DataFrame"):
        pandas_input_fn(X, shuffle=False)
