"""Plain text -> batches for a model that predicts the next byte.

# B batch, S sequence
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from reference_implementations.common.data.sample_order import batches_of, text_bytes
from reference_implementations.common.text_settings import TextInput


def text_dataset(settings: TextInput, input_context: Any = None) -> tf.data.Dataset:
    """Return batches of windows of a text.

    The text is cut into windows of S + 1 bytes. Each window starts with the last byte of the previous one.

    Args:
        settings: What to read and how.
        input_context: A tf.distribute.InputContext, if several tasks share the data.

    Returns:
        (features, labels): input_ids and input_mask (all 1), (B, S) int32; labels (B, S) int32, the next byte.

    Raises:
        SettingsError: If the file is missing or holds less than one batch.
    """
    assert settings.data_file is not None
    sequence = settings.max_sequence_length
    num_bytes, text = text_bytes(settings.data_file)
    num_windows = (num_bytes - 1) // sequence
    what = f"data_file {settings.data_file!r} holds {num_windows} windows of {sequence} bytes"
    batches = batches_of(num_windows, settings, input_context, what)

    def read_windows(_step: tf.Tensor, index_B: tf.Tensor) -> tuple[Mapping[str, tf.Tensor], tf.Tensor]:
        positions = index_B[:, None] * sequence + tf.range(sequence + 1, dtype=tf.int64)[None, :]
        tokens = tf.cast(tf.gather(text, positions), tf.int32)
        input_ids_BS = tf.ensure_shape(tokens[:, :-1], [settings.batch_size, sequence])
        labels_BS = tf.ensure_shape(tokens[:, 1:], [settings.batch_size, sequence])
        return {"input_ids": input_ids_BS, "input_mask": tf.ones_like(input_ids_BS)}, labels_BS

    return batches.map(read_windows).prefetch(2)
