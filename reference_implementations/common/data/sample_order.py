"""The order in which samples are read: a pure function of (seed, epoch), so that a run can resume at any batch.

# B batch
"""

from __future__ import annotations

import os
from typing import Any, Protocol

import tensorflow as tf

from cerebras_tensorflow.errors import SettingsError
from reference_implementations.common.tasks import num_tasks, task_id


class Order(Protocol):
    """Keys of an input section about the order of its samples."""

    @property
    def batch_size(self) -> int:
        """Samples in a step."""

    @property
    def shuffle(self) -> bool:
        """Whether samples come in random order."""

    @property
    def shuffle_seed(self) -> int:
        """Seed of the random order."""

    @property
    def repeat(self) -> bool:
        """Whether the data starts again at its end."""

    @property
    def skip_steps(self) -> int:
        """Steps at the start that a resumed run leaves out, because it has done them."""


def batches_of(num_samples: int, settings: Order, input_context: Any, what: str) -> tf.data.Dataset:
    """Return this task's share of the steps of a run with their sample numbers, as `index_batches` does.

    Args:
        num_samples: Samples in the data set.
        settings: The input section.
        input_context: A tf.distribute.InputContext, if several tasks share the data.
        what: Source of the samples, for the error message: "data_file 'x' holds 3 windows of 8 bytes".

    Raises:
        SettingsError: If the data holds less than one batch.
    """
    if num_samples < settings.batch_size:
        raise SettingsError(f"{what}, less than one batch of {settings.batch_size}")
    return index_batches(
        num_samples,
        settings.batch_size,
        seed=settings.shuffle_seed if settings.shuffle else None,
        repeat=settings.repeat,
        skip_steps=settings.skip_steps,
        num_shards=num_tasks(input_context),
        shard=task_id(input_context),
    )


def text_bytes(data_file: str) -> tuple[int, tf.Tensor]:
    """Return the size of a text [B], and its bytes (size,) uint8.

    Raises:
        SettingsError: If it cannot be read.
    """
    try:
        size = os.path.getsize(data_file)
    except OSError as exc:
        raise SettingsError(f"cannot read data_file {data_file!r}: {exc.strerror}") from exc
    return size, tf.io.decode_raw(tf.io.read_file(data_file), tf.uint8)


def index_batches(
    num_samples: int,
    batch_size: int,
    seed: int | None,
    repeat: bool,
    skip_steps: int = 0,
    num_shards: int = 1,
    shard: int = 0,
) -> tf.data.Dataset:
    """Return the steps of a run with their sample numbers.

    Args:
        num_samples: Samples in the data set.
        batch_size: B. Samples at the end that do not fill a batch are dropped.
        seed: Shuffles each epoch differently; None keeps the order of the data.
        repeat: Whether epochs follow each other without end. A batch may then span two epochs.
        skip_steps: Batches left out at the start. This takes no time, whatever the number.
        num_shards: Readers that share the batches; reader k gets batches k, k + num_shards, ...
        shard: Number of this reader, k.

    Returns:
        (step, index): () int64, counted from 0 over the whole run; (B,) int64.

    Raises:
        ValueError: If the data holds less than one batch.
    """
    if num_samples < batch_size:
        raise ValueError(f"the data holds {num_samples} samples, less than one batch of {batch_size}")
    skipped = skip_steps * batch_size
    first_epoch = skipped // num_samples if repeat else 0
    last_epoch = tf.int64.max if repeat else 1

    def epoch_order(epoch: tf.Tensor) -> tf.data.Dataset:
        order = tf.range(num_samples, dtype=tf.int64)
        if seed is not None:
            key = tf.stack([tf.constant(seed, tf.int64), epoch])
            order = tf.argsort(tf.random.stateless_uniform([num_samples], key, dtype=tf.float64))
        return tf.data.Dataset.from_tensor_slices(tf.cast(order, tf.int64))

    samples = tf.data.Dataset.range(first_epoch, last_epoch).flat_map(epoch_order)
    batches = samples.skip(skipped - first_epoch * num_samples).batch(batch_size, drop_remainder=True)
    steps = tf.data.Dataset.range(skip_steps, tf.int64.max)
    return tf.data.Dataset.zip((steps, batches)).shard(num_shards, shard)
