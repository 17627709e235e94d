"""The classifier of digits: its data, its names, and that it learns."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import reference_implementations
from cerebras_tensorflow.errors import MissingDataError, SettingsError
from reference_implementations.fc_mnist.data import image_dataset, load_images
from reference_implementations.fc_mnist.model import model_fn
from reference_implementations.fc_mnist.settings import ImageInput, TrainImageInput

DIGITS = str(Path(reference_implementations.__file__).parent / "data" / "digits.csv.gz")


def idx(magic: int, sizes: list[int], values: np.ndarray) -> bytes:
    return np.array([magic, *sizes], ">u4").tobytes() + values.astype(np.uint8).tobytes()


def test_the_model_learns_the_digits() -> None:
    params = {"model": {"hidden_sizes": [64]}, "optimizer": {"optimizer_type": "adam", "learning_rate": 3e-3}}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.set_random_seed(1)
        dataset = image_dataset(TrainImageInput(data_file=DIGITS, max_pixel=16, batch_size=64))
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        spec = model_fn(*iterator.get_next(), "train", params)
        session.run([iterator.initializer, tf.compat.v1.global_variables_initializer()])
        losses = [session.run([spec.loss, spec.train_op])[0] for _ in range(100)]
    assert losses[0] > 2.0
    assert np.mean(losses[-5:]) < 0.3


def test_variables_are_named_as_in_the_public_model_zoo() -> None:
    with tf.Graph().as_default():
        features, labels = tf.zeros([4, 784]), tf.zeros([4], tf.int32)
        model_fn(features, labels, "eval", {"model": {"hidden_sizes": [50, 30]}})
        shapes = {variable.op.name: variable.shape.as_list() for variable in tf.compat.v1.trainable_variables()}
    assert shapes == {
        "km_disable_scope_1/dense/kernel": [784, 50],
        "km_disable_scope_1/dense/bias": [50],
        "km_disable_scope_3/dense_1/kernel": [50, 30],
        "km_disable_scope_3/dense_1/bias": [30],
        "km_disable_scope_4/dense_2/kernel": [30, 10],
        "km_disable_scope_4/dense_2/bias": [10],
    }


def test_the_splits_share_no_digit() -> None:
    train, _ = load_images(ImageInput(batch_size=1, data_file=DIGITS))
    test, classes = load_images(ImageInput(batch_size=1, data_file=DIGITS, split="test"))
    assert (len(train), len(test)) == (1500, 297)
    assert train.max() == 16
    assert set(classes) == set(range(10))


def test_mnist_files_are_read(tmp_path: Path) -> None:
    images = np.arange(2 * 3 * 3).reshape(2, 3, 3)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(0x803, [2, 3, 3], images))
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(0x801, [2], np.array([7, 1]))))
    pixels, classes = load_images(ImageInput(batch_size=1, data_dir=str(tmp_path)))
    np.testing.assert_array_equal(pixels, images.reshape(2, 9))
    np.testing.assert_array_equal(classes, [7, 1])


def test_a_truncated_mnist_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(0x803, [2, 3, 3], np.zeros(17)))
    with pytest.raises(SettingsError, match="not an MNIST file of images, or cut short"):
        load_images(ImageInput(batch_size=1, data_dir=str(tmp_path)))


def test_the_error_for_missing_mnist_files_has_the_element_spec(tmp_path: Path) -> None:
    settings = ImageInput(batch_size=2, data_dir=str(tmp_path))
    with pytest.raises(MissingDataError, match=r"cannot read .*train-images-idx3-ubyte") as caught:
        image_dataset(settings)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(0x803, [2, 28, 28], np.zeros(2 * 784)))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(0x801, [2], np.zeros(2)))
    assert caught.value.element_spec == image_dataset(settings).element_spec
