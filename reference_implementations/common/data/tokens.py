"""HDF5 and TFRecord files of tokens -> batches for a model that predicts the next token.

# B batch, S sequence
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from reference_implementations.common.data.records import record_dataset
from reference_implementations.common.data.sample_order import batches_of
from reference_implementations.common.data.token_files import FEATURES, HDF5, Hdf5Samples, find_files
from reference_implementations.common.text_settings import TextInput


def token_dataset(settings: TextInput, input_context: Any = None) -> tf.data.Dataset:
    """Return batches of the samples in `data_dir`.

    HDF5 files are read by sample number: shuffling mixes all samples, and a resumed run starts at its place at once.
    TFRecord files are read from the start: shuffling mixes `shuffle_buffer` samples at a time, and a resumed run reads
    and drops the samples of earlier runs. Both orders depend only on the seed.

    Args:
        settings: What to read and how.
        input_context: A tf.distribute.InputContext, if several tasks share the data.

    Returns:
        (features, labels): input_ids and input_mask (B, S) int32; labels (B, S) int32.

    Raises:
        MissingDataError: If there are no files.
        SettingsError: If the files are of another kind or length, or hold less than one batch.
    """
    assert settings.data_dir is not None
    tokens_BS = tf.TensorSpec([settings.batch_size, settings.max_sequence_length], tf.int32)
    spec = ({"input_ids": tokens_BS, "input_mask": tokens_BS}, tokens_BS)
    kind, paths = find_files(settings.data_dir, settings.data_processor, spec)
    if kind == HDF5:
        return _hdf5_dataset(paths, settings, input_context)
    specification = {name: tf.io.FixedLenFeature([settings.max_sequence_length], tf.int64) for name in FEATURES}
    return record_dataset(settings, specification, input_context)


def _hdf5_dataset(paths: list[str], settings: TextInput, input_context: Any) -> tf.data.Dataset:
    samples = Hdf5Samples(paths, settings.max_sequence_length)
    what = f"data_dir {settings.data_dir!r} holds {len(samples)} samples"
    batches = batches_of(len(samples), settings, input_context, what)

    def read(_step: tf.Tensor, index_B: tf.Tensor) -> tuple[Mapping[str, tf.Tensor], tf.Tensor]:
        rows_B3S = tf.numpy_function(samples.read, [index_B], tf.int32)
        rows_B3S = tf.ensure_shape(rows_B3S, [settings.batch_size, len(FEATURES), settings.max_sequence_length])
        return {"input_ids": rows_B3S[:, 0], "input_mask": rows_B3S[:, 1]}, rows_B3S[:, 2]

    return batches.map(read).prefetch(2)
