"""The saver against TensorFlow itself: our files in its readers, its files in ours."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from cerebras_tensorflow.saver.bundle.reader import BundleReader
from cerebras_tensorflow.saver.bundle.sstable import read_table
from cerebras_tensorflow.saver.bundle.writer import BundleWriter
from cerebras_tensorflow.saver.model_dir.retention import Policy, record_save
from cerebras_tensorflow.saver.model_dir.state import read_state

VALUES = {
    "dense/kernel": np.arange(12, dtype=np.float32).reshape(3, 4),
    "global_step": np.array(5, np.int64),
    "bf16": np.arange(5).astype(ml_dtypes.bfloat16),
    "half_empty": np.zeros((0, 3), np.float16),
    "flags": np.array([True, False]),
    "text": np.array([b"x", b"yy\xff", b""], object),
    "name/\u540d\u524d": np.ones(2, np.complex64),
}


@pytest.fixture(scope="module")
def tf():
    return pytest.importorskip("tensorflow")


def test_tensorflow_reads_what_we_write(tf, tmp_path: Path) -> None:
    prefix = str(tmp_path / "model.ckpt-5")
    with BundleWriter(prefix, shard_of=lambda name, num_bytes: len(name) % 3) as writer:
        for name, value in VALUES.items():
            writer.add(name, value)
    record_save(str(tmp_path), prefix, Policy())
    assert tf.train.latest_checkpoint(str(tmp_path)) == prefix
    state = tf.train.get_checkpoint_state(str(tmp_path))
    assert list(state.all_model_checkpoint_paths) == [prefix]
    reader = tf.train.load_checkpoint(str(tmp_path))
    assert reader.get_variable_to_shape_map() == {name: list(value.shape) for name, value in VALUES.items()}
    for name, value in VALUES.items():
        np.testing.assert_array_equal(reader.get_tensor(name), value)
        assert reader.get_tensor(name).dtype == value.dtype


def test_tensorflow_reads_a_large_index(tf, tmp_path: Path) -> None:
    with BundleWriter(tmp_path / "c") as writer:
        for number in range(20_000):
            writer.add(f"block_{number // 10}/layer_{number}/kernel", np.int32(number))
    reader = tf.train.load_checkpoint(str(tmp_path / "c"))
    assert len(reader.get_variable_to_shape_map()) == 20_000
    assert reader.get_tensor("block_1234/layer_12345/kernel") == 12345


def test_a_saver_restores_a_checkpoint_that_we_replaced(tf, tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        with BundleWriter(tmp_path / "c") as writer:
            writer.add("w", np.full((2, 2), value, np.float32))
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("w", (2, 2))
        tf.compat.v1.train.Saver([variable]).restore(session, str(tmp_path / "c"))
        assert session.run(variable).tolist() == [[2.0, 2.0]] * 2


def test_we_read_what_a_saver_writes_also_partitioned_and_sharded(tf, tmp_path: Path) -> None:
    v1 = tf.compat.v1
    with tf.Graph().as_default():
        initializer = v1.random_normal_initializer(seed=1)
        rows = v1.get_variable(
            "rows", (10, 6), partitioner=v1.fixed_size_partitioner(3), initializer=initializer, use_resource=False
        )
        columns = v1.get_variable(
            "columns", (4, 300), partitioner=v1.fixed_size_partitioner(2, axis=1), initializer=initializer
        )
        text = v1.get_variable("text", initializer=tf.constant(["q", "w\u00fc"]))
        half = v1.get_variable("half", initializer=tf.constant([1.5, -2.0], tf.bfloat16))
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            expected = session.run({"rows": tf.convert_to_tensor(rows), "columns": tf.convert_to_tensor(columns)})
            prefix = v1.train.Saver(sharded=True).save(session, str(tmp_path / "model.ckpt"), global_step=7)
    state = read_state(tmp_path)
    assert state is not None and state.model_checkpoint_path == prefix
    with BundleReader(prefix) as reader:
        assert set(reader.names()) == {"rows", "columns", text.op.name, half.op.name}
        reader.check_complete()
        reader.verify()
        for name, value in expected.items():
            np.testing.assert_array_equal(reader.read(name), value)
            np.testing.assert_array_equal(reader.read_slice(name, 1, 4), value[1:4])
        assert reader.read("text").tolist() == [b"q", "w\u00fc".encode()]
        assert reader.read("half").dtype == ml_dtypes.bfloat16


def test_we_read_object_graph_checkpoints(tf, tmp_path: Path) -> None:
    path = tf.train.Checkpoint(step=tf.Variable(3, dtype=tf.int64)).save(str(tmp_path / "object"))
    with BundleReader(path) as reader:
        assert "_CHECKPOINTABLE_OBJECT_GRAPH" in reader
        assert reader.read("step/.ATTRIBUTES/VARIABLE_VALUE") == 3
        reader.verify()


def test_our_bundles_equal_those_of_tensorflow_byte_for_byte(tf, tmp_path: Path) -> None:
    names = sorted(VALUES)
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "theirs"),
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[tf.constant(VALUES[name]) for name in names],
    )
    with BundleWriter(tmp_path / "ours") as writer:
        for name in names:
            writer.add(name, VALUES[name])
    data, index = ".data-00000-of-00001", ".index"
    assert (tmp_path / f"ours{data}").read_bytes() == (tmp_path / f"theirs{data}").read_bytes()
    # The keys between blocks may be shortened, so the indexes are compared record by record.
    ours, theirs = (list(read_table((tmp_path / f"{who}{index}").read_bytes())) for who in ("ours", "theirs"))
    assert ours == theirs
