"""Arguments and results of an input_fn, and how its batches, end and errors reach the step."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cerebras_tensorflow import CSConfig
from cerebras_tensorflow.estimator.config.run_settings import RunSettings
from cerebras_tensorflow.estimator.model.dataset_reader import untuned
from cerebras_tensorflow.estimator.model.inputs import BatchInputs, InputPipeline, first_dim
from tests.unit.estimator import tiny

v1 = tf.compat.v1
X = np.arange(12, dtype=np.float32).reshape(6, 2)
Y = np.arange(6, dtype=np.int32)
SETTINGS = RunSettings(None, CSConfig(), tf_random_seed=1)


def opened(input_fn: Callable[..., Any], params: Any = None) -> tuple[InputPipeline, BatchInputs, Any]:
    """A pipeline that has started, its placeholders, and their graph."""
    pipeline = InputPipeline(input_fn, params, "train", SETTINGS)
    graph = tf.Graph()
    with graph.as_default():
        inputs = pipeline.batch()
    pipeline.start()
    return pipeline, inputs, graph


def first_batch(input_fn: Callable[..., Any], params: Any = None) -> tuple[BatchInputs, Mapping[str, np.ndarray]]:
    pipeline, inputs, _ = opened(input_fn, params)
    try:
        return inputs, pipeline.next_batch()
    finally:
        pipeline.close()


def pairs() -> Any:
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(2)


def test_a_dataset_of_pairs_gives_features_and_labels() -> None:
    inputs, batch = first_batch(pairs)
    np.testing.assert_array_equal(batch[inputs.features.name], X[:2])
    np.testing.assert_array_equal(batch[inputs.labels.name], Y[:2])
    assert inputs.features.dtype == tf.float32 and inputs.labels.dtype == tf.int32


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: (x, None)], ids=["alone", "with None"])
def test_features_without_labels(wrap: Callable[[Any], Any]) -> None:
    features = {"x": tf.constant(X)}
    inputs = InputPipeline(lambda: wrap(features), None, "train", SETTINGS).batch()
    assert inputs.features is features and inputs.labels is None


def test_the_batches_in_memory_are_those_of_the_step_and_those_read_ahead() -> None:
    pair = (np.zeros([4, 6], np.float32), np.zeros([4], np.int64))
    pipeline = InputPipeline(lambda: tf.data.Dataset.from_tensors(pair).repeat(), None, "train", SETTINGS)
    batch_bytes = 4 * 4 * 6 + 4 * 8
    with tf.Graph().as_default():
        assert (
            pipeline.batch().bytes_in_memory == 4 * batch_bytes
        )  # in the step, two in the queue, one waits for a place
        pipeline.cut_batches(2)
        assert pipeline.batch().bytes_in_memory == 4 * batch_bytes
    in_step = InputPipeline(lambda: (tf.constant([1.0]), tf.constant([2])), None, "train", SETTINGS)
    assert in_step.batch().bytes_in_memory == 0


def test_nested_features_keep_their_structure() -> None:
    element = {"a": 1, "b": (2, [3])}
    inputs, batch = first_batch(lambda: tf.data.Dataset.from_tensors(element))
    assert batch[inputs.features["b"][1].name] == [3]
    assert batch[inputs.features["a"].name] == 1


def test_sparse_features_come_as_a_sparse_tensor_with_their_values() -> None:
    sparse = tf.sparse.from_dense(tf.constant([[0, 5], [7, 0]]))
    pipeline, inputs, graph = opened(lambda: tf.data.Dataset.from_tensors({"s": sparse_again()}))
    try:
        with graph.as_default(), v1.Session(graph=graph) as session:
            dense = session.run(tf.sparse.to_dense(inputs.features["s"]), pipeline.next_batch())
    finally:
        pipeline.close()
    np.testing.assert_array_equal(dense, [[0, 5], [7, 0]])
    assert isinstance(sparse, tf.SparseTensor)


def sparse_again() -> Any:
    return tf.sparse.from_dense(tf.constant([[0, 5], [7, 0]]))


@pytest.mark.parametrize("kind", ["tensors", "iterator", "variable", "summary", "step"])
def test_what_the_model_can_reach_stays_in_its_graph(kind: str) -> None:
    def input_fn() -> Any:
        if kind == "tensors":
            return tf.constant(X), tf.constant(Y)
        if kind == "iterator":
            return v1.data.make_one_shot_iterator(pairs()).get_next()
        if kind == "variable":
            v1.get_variable("seen", [], trainable=False)
        if kind == "summary":
            v1.summary.scalar("rows", tf.constant(6))
        if kind == "step":
            step = v1.train.get_global_step()
            return pairs().map(lambda x, y: (x + tf.cast(step, tf.float32), y))
        return pairs()

    pipeline = InputPipeline(input_fn, None, "train", SETTINGS)
    assert not pipeline.is_fed
    inputs = pipeline.batch()
    assert inputs.names == () and all(tensor.graph is pipeline.graph for tensor in inputs.tensors)


def test_params_reach_an_input_fn_that_takes_them() -> None:
    _, batch = first_batch(lambda params: tf.data.Dataset.from_tensors([params["value"]]), {"value": 9})
    assert next(iter(batch.values())).tolist() == [9]


def test_an_input_fn_without_arguments_is_called_without() -> None:
    _, batch = first_batch(lambda: tf.data.Dataset.from_tensors([4]), {"value": 9})
    assert next(iter(batch.values())).tolist() == [4]


def test_mode_and_config_are_offered() -> None:
    seen: dict[str, Any] = {}

    def input_fn(mode: str, config: Any) -> Any:
        seen.update(mode=mode, config=config)
        return tf.constant([1])

    InputPipeline(input_fn, None, "train", SETTINGS)
    assert seen == {"mode": "train", "config": None}


def test_a_tuple_of_three_is_refused_with_its_length() -> None:
    with pytest.raises(ValueError, match="tuple of length 3"):
        InputPipeline(lambda: (tf.constant(1), tf.constant(2), tf.constant(3)), None, "train", SETTINGS)


def test_an_error_in_input_fn_reaches_the_caller_unchanged() -> None:
    def input_fn() -> Any:
        raise FileNotFoundError("no such corpus")

    with pytest.raises(FileNotFoundError, match="no such corpus"):
        InputPipeline(input_fn, None, "train", SETTINGS)


def test_an_error_while_reading_is_raised_by_every_later_call() -> None:
    def generate() -> Any:
        yield np.float32(1)
        raise RuntimeError("row 17 is broken")

    def input_fn() -> Any:
        return tf.data.Dataset.from_generator(generate, output_signature=tf.TensorSpec([], tf.float32))

    pipeline, _, _ = opened(input_fn)
    try:
        pipeline.next_batch()
        for _ in range(2):
            with pytest.raises(tf.errors.OpError, match="row 17 is broken"):
                pipeline.next_batch()
    finally:
        pipeline.close()


def test_the_end_of_the_input_is_out_of_range_and_stays_so() -> None:
    pipeline, _, _ = opened(pairs)
    try:
        for _ in range(3):
            pipeline.next_batch()
        for _ in range(2):
            with pytest.raises(tf.errors.OutOfRangeError):
                pipeline.next_batch()
    finally:
        pipeline.close()


def test_shuffling_repeats_with_the_seed() -> None:
    def input_fn() -> Any:
        return tf.data.Dataset.range(100).shuffle(100).batch(100)

    first, second = (next(iter(first_batch(input_fn)[1].values())) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert first.tolist() != list(range(100))


def test_a_lookup_table_of_the_input_is_initialized() -> None:
    def input_fn() -> Any:
        table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["a", "b"], [1, 2]), -1)
        return tf.data.Dataset.from_tensors(tf.constant(["b", "z"])).map(table.lookup)

    _, batch = first_batch(input_fn)
    assert next(iter(batch.values())).tolist() == [2, -1]


def test_closing_without_reading_ends_the_reading_thread() -> None:
    pipeline, _, _ = opened(lambda: tf.data.Dataset.range(10**9).batch(2))
    pipeline.close()
    reader = pipeline._reader
    assert reader is not None and reader._thread is not None and not reader._thread.is_alive()


def test_autotune_is_off_unless_the_dataset_enables_it() -> None:
    asked = tf.data.Options()
    asked.autotune.enabled = True
    assert untuned(pairs()).options().autotune.enabled is False
    assert untuned(pairs().with_options(asked)).options().autotune.enabled is True
    with tf.Graph().as_default():  # reading the options in a graph makes TensorFlow warn
        dataset = pairs().with_options(asked)
        assert untuned(dataset) is dataset and untuned(pairs()) is not dataset


def test_first_dim_skips_scalars() -> None:
    assert first_dim({"a": np.float32(1), "b": np.zeros((5, 2))}) == 5
    assert first_dim({"a": np.float32(1)}) == 1


def test_tf_config_describes_one_worker_while_input_fn_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    seen: list[Any] = []

    def shard() -> Any:
        config = json.loads(os.environ["TF_CONFIG"])
        seen.append((len(config["cluster"]["worker"]), config["task"]["index"]))
        return tiny.input_fn()()

    tiny.estimator(tmp_path).train(shard, steps=1)
    assert set(seen) == {(1, 0)}
    assert "TF_CONFIG" not in os.environ


def test_an_existing_tf_config_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = json.dumps({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}})
    monkeypatch.setenv("TF_CONFIG", given)

    def shard() -> Any:
        assert os.environ["TF_CONFIG"] == given
        return tiny.input_fn()()

    tiny.estimator(tmp_path).train(shard, steps=1)
