"""Parts of a partitioned variable are one tensor in a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.estimator.model.partitions import PartKey, Wholes, checkpoint_key
from tests.unit.estimator import tiny

v1 = tf.compat.v1


def parts(number: int) -> Any:
    def spec(mode: str, y: Any, labels: Any) -> dict[str, Any]:
        partitioner = v1.fixed_size_partitioner(number)
        table = v1.get_variable("table", [50, 2], initializer=v1.ones_initializer(), partitioner=partitioner)
        if mode != "train":
            return {"loss": tf.reduce_mean(y) + tf.reduce_sum(tf.convert_to_tensor(table))}
        loss = tf.reduce_mean((y - labels) ** 2) + tf.reduce_sum(tf.convert_to_tensor(table) ** 2)
        return {"loss": loss, "train_op": v1.train.AdamOptimizer(0.1).minimize(loss, v1.train.get_global_step())}

    return {"spec": spec}


def test_keys_of_parts_name_the_whole_and_the_region() -> None:
    with tf.Graph().as_default():
        made = v1.get_variable("w", [5, 2], partitioner=v1.fixed_size_partitioner(2), use_resource=True)
        keys = [checkpoint_key(part) for part in made]
        alone = v1.get_variable("v", [5], partitioner=v1.fixed_size_partitioner(1), use_resource=True)
        (key,) = [checkpoint_key(part) for part in alone]
    assert keys == ["w", "w"] and key == "v" and not isinstance(key, PartKey)
    assert [part.region for part in keys if isinstance(part, PartKey)] == [
        (slice(0, 3), slice(0, 2)),
        (slice(3, 5), slice(0, 2)),
    ]


def test_a_whole_without_all_its_parts_is_refused() -> None:
    wholes = Wholes()
    wholes.add(PartKey("w", (3,), (slice(0, 2),)), np.dtype(np.float32), (2,), np.ones(2, np.float32))
    with pytest.raises(CheckpointError, match="w lacks 1 of 3 elements"):
        list(wholes)


def test_checkpoints_hold_wholes_and_load_into_other_partitions(mode: str, tmp_path: Path) -> None:
    run = tiny.estimator(tmp_path, parts(2)).train(tiny.input_fn(), steps=2)
    names = run.get_variable_names()
    assert {"table", "table/Adam", "table/Adam_1"} <= set(names) and not any("part_" in name for name in names)
    assert run.get_variable_value("table").shape == (50, 2)
    other = tiny.estimator(tmp_path, parts(3)).train(tiny.input_fn(), steps=2)
    plain = tiny.estimator(tmp_path / "plain", parts(1)).train(tiny.input_fn(), steps=4)
    np.testing.assert_array_equal(other.get_variable_value("table"), plain.get_variable_value("table"))


def test_a_slot_that_is_the_only_part_of_its_tensor_is_saved_and_loaded(mode: str, tmp_path: Path) -> None:
    columns = [tf.feature_column.categorical_column_with_hash_bucket("word", 64)]

    def batch() -> Any:
        return {"word": tf.constant([["a"], ["b"]])}, tf.constant([[1.0], [2.0]])

    def trained(folder: str, steps: int) -> Any:
        partitioner = v1.fixed_size_partitioner(4)
        run = v1.estimator.LinearRegressor(columns, str(tmp_path / folder), partitioner=partitioner)
        return run.train(batch, steps=steps)

    twice, once = trained("twice", 1).train(batch, steps=1), trained("once", 2)
    slot = "linear/linear_model/word/weights/part_1/Ftrl"
    assert once.get_variable_value(f"{slot}:0").shape == (64, 1)
    for name in once.get_variable_names():
        np.testing.assert_array_equal(twice.get_variable_value(name), once.get_variable_value(name))
