"""TFRecord files of samples -> batches; the order depends on the seed alone.

# B batch
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import tensorflow as tf

from reference_implementations.common.data.sample_order import Order
from reference_implementations.common.data.token_files import find_files
from reference_implementations.common.tasks import num_tasks, task_id


class RecordInput(Order, Protocol):
    """Keys of an input section that reads TFRecord files."""

    @property
    def data_dir(self) -> Any:
        """Folder or folders of the files."""

    @property
    def shuffle_buffer(self) -> int:
        """Samples among which the next one is drawn."""


def record_dataset(
    settings: RecordInput, specification: Mapping[str, Any], input_context: Any = None, labels: str = "labels"
) -> tf.data.Dataset:
    """Return batches of the records in `data_dir`.

    Shuffling mixes `shuffle_buffer` samples at a time. A resumed run reads and drops the samples of earlier runs.

    Args:
        settings: What to read and how.
        specification: Feature name -> tf.io.FixedLenFeature.
        input_context: A tf.distribute.InputContext, if several tasks share the data.
        labels: Name of the feature that holds the labels.

    Returns:
        (features, labels): (B, ...) int32, or float32 for features that are floats in the records.

    Raises:
        MissingDataError: If there are no files.
    """
    batch = {
        name: tf.TensorSpec([settings.batch_size, *feature.shape], _held(feature.dtype))
        for name, feature in specification.items()
    }
    _, paths = find_files(settings.data_dir, "GptTfRecordsProcessor", (batch, batch.pop(labels)))
    records = tf.data.TFRecordDataset(paths)
    if settings.shuffle:
        records = records.shuffle(settings.shuffle_buffer, seed=settings.shuffle_seed, reshuffle_each_iteration=True)
    if settings.repeat:
        records = records.repeat()
    batches = records.batch(settings.batch_size, drop_remainder=True).skip(settings.skip_steps)
    batches = batches.shard(num_tasks(input_context), task_id(input_context))

    def parse(records_B: tf.Tensor) -> tuple[Mapping[str, tf.Tensor], tf.Tensor]:
        values = tf.io.parse_example(tf.ensure_shape(records_B, [settings.batch_size]), specification)
        features = {name: tf.cast(value, _held(value.dtype)) for name, value in values.items()}
        return features, features.pop(labels)

    return batches.map(parse).prefetch(2)


def _held(dtype: tf.DType) -> tf.DType:
    """Return the type in a batch of a feature in a record: records hold whole numbers as int64."""
    return tf.int32 if dtype == tf.int64 else dtype
