"""Images of digits -> batches.

# B batch, I pixels of an image
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.errors import MissingDataError, SettingsError
from reference_implementations.common.data.sample_order import batches_of
from reference_implementations.common.settings import check_section
from reference_implementations.fc_mnist.settings import EvalImageInput, ImageInput, TrainImageInput

_PREFIX = {"train": "train", "test": "t10k"}
_MNIST_PIXELS = 28 * 28
_HEADER = {"images-idx3-ubyte": (0x803, 16), "labels-idx1-ubyte": (0x801, 8)}  # magic number, header bytes


def train_input_fn(params: Mapping[str, Any], input_context: Any = None) -> tf.data.Dataset:
    """Return the training batches of section `train_input`."""
    return image_dataset(check_section(params["train_input"], TrainImageInput, "train_input", "params"), input_context)


def eval_input_fn(params: Mapping[str, Any], input_context: Any = None) -> tf.data.Dataset:
    """Return the evaluation batches of section `eval_input`."""
    return image_dataset(check_section(params["eval_input"], EvalImageInput, "eval_input", "params"), input_context)


def image_dataset(settings: ImageInput, input_context: Any = None) -> tf.data.Dataset:
    """Return batches of images and classes.

    Returns:
        (features, labels): (B, I) float32 from 0 to 1; (B,) int32.

    Raises:
        MissingDataError: If a file is missing.
        SettingsError: If a file is damaged, or the data holds less than one batch.
    """
    try:
        images, labels = load_images(settings)
    except MissingDataError as exc:
        if settings.data_dir is None:
            raise
        batch = settings.batch_size
        spec = (tf.TensorSpec([batch, _MNIST_PIXELS], tf.float32), tf.TensorSpec([batch], tf.int32))
        raise MissingDataError(str(exc), spec) from exc
    batches = batches_of(len(labels), settings, input_context, f"the data holds {len(labels)} images")
    images_tensor, labels_tensor = tf.constant(images), tf.constant(labels.astype(np.int32))

    def read_images(_step: tf.Tensor, index_B: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        pixels_BI = tf.cast(tf.gather(images_tensor, index_B), tf.float32) / float(settings.max_pixel)
        labels_B = tf.gather(labels_tensor, index_B)
        return (
            tf.ensure_shape(pixels_BI, [settings.batch_size, images.shape[1]]),
            tf.ensure_shape(labels_B, [settings.batch_size]),
        )

    return batches.map(read_images).prefetch(2)


def load_images(settings: ImageInput) -> tuple[np.ndarray, np.ndarray]:
    """Return the pixels (images, I) uint8 and classes (images,) uint8 of a split."""
    if settings.data_dir is not None:
        prefix = _PREFIX[settings.split]
        images = _read_idx(Path(settings.data_dir), f"{prefix}-images-idx3-ubyte")
        return images.reshape(len(images), -1), _read_idx(Path(settings.data_dir), f"{prefix}-labels-idx1-ubyte")
    text = _read(Path(settings.data_file or "")).decode("ascii", errors="replace")
    try:
        rows = np.array([line.split(",") for line in text.splitlines() if line], np.float64).astype(np.uint8)
    except ValueError as exc:
        raise SettingsError(f"data_file {settings.data_file!r}: expected lines of numbers and commas ({exc})") from exc
    rows = rows[: -settings.num_test] if settings.split == "train" else rows[-settings.num_test :]
    return rows[:, :-1], rows[:, -1]


def _read(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except FileNotFoundError as exc:
        raise MissingDataError(f"cannot read {str(path)!r}: {exc.strerror}") from exc
    except OSError as exc:
        raise SettingsError(f"cannot read {str(path)!r}: {exc.strerror}") from exc
    return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content


def _read_idx(folder: Path, name: str) -> np.ndarray:
    """Return the array in one of the MNIST files; format: yann.lecun.com/exdb/mnist."""
    path = folder / name
    content = _read(path if path.exists() else folder / f"{name}.gz")
    magic, header_bytes = _HEADER[name.split("-", 1)[1]]
    sizes = np.frombuffer(content[:header_bytes], ">u4")
    if len(sizes) * 4 != header_bytes or sizes[0] != magic or len(content) != header_bytes + np.prod(sizes[1:]):
        raise SettingsError(f"{path}: not an MNIST file of {name.split('-')[1]}, or cut short")
    return np.frombuffer(content, np.uint8, offset=header_bytes).reshape(sizes[1:])
