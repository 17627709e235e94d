"""The order in which samples are read: a pure function of (seed, epoch), so that a run can resume anywhere.

# B batch
"""

from __future__ import annotations

import tensorflow as tf


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
        batch_size: B; what is left at the end of the data is dropped.
        seed: Shuffles every epoch anew; None keeps the order of the data.
        repeat: Whether epochs follow each other without end; batches then may span two.
        skip_steps: Batches left out at the start; costs nothing, however many they are.
        num_shards: Readers that share the batches; reader k gets batches k, k + num_shards, ...
        shard: This reader.

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
