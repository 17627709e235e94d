"""Plain text -> batches for pre-training: pairs of pieces, some bytes masked; half of the pairs do not follow on.

TFRecord files hold what the public Model Zoo's do, masked already: input_ids, input_mask, segment_ids (S int64),
masked_lm_positions, masked_lm_ids (P int64), masked_lm_weights (P float), next_sentence_labels (1 int64). `records.py`
makes them.

# B batch, S sequence, P predictions, A and C bytes of the first and second piece
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from reference_implementations.bert.records import CLASS, IS_NEXT, MASK, NEXT_SENTENCE, SEPARATOR
from reference_implementations.bert.settings import BertTextInput, EvalBertInput, TrainBertInput
from reference_implementations.common.data.records import record_dataset
from reference_implementations.common.data.sample_order import batches_of, text_bytes
from reference_implementations.common.settings import check_section


def train_input_fn(params: Mapping[str, Any], input_context: Any = None) -> tf.data.Dataset:
    """Return the training batches of section `train_input`."""
    return _dataset(check_section(params["train_input"], TrainBertInput, "train_input", "params"), input_context)


def eval_input_fn(params: Mapping[str, Any], input_context: Any = None) -> tf.data.Dataset:
    """Return the evaluation batches of section `eval_input`."""
    return _dataset(check_section(params["eval_input"], EvalBertInput, "eval_input", "params"), input_context)


def _dataset(settings: BertTextInput, input_context: Any) -> tf.data.Dataset:
    if settings.data_file is not None:
        return pair_dataset(settings, input_context)
    sequence, predictions = settings.max_sequence_length, settings.max_predictions_per_seq
    lengths = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), sequence)
    lengths |= dict.fromkeys(("masked_lm_positions", "masked_lm_ids"), predictions)
    specification = {name: tf.io.FixedLenFeature([length], tf.int64) for name, length in lengths.items()}
    specification["masked_lm_weights"] = tf.io.FixedLenFeature([predictions], tf.float32)
    specification[NEXT_SENTENCE] = tf.io.FixedLenFeature([], tf.int64)
    return record_dataset(settings, specification, input_context, NEXT_SENTENCE)


def pair_dataset(settings: BertTextInput, input_context: Any = None) -> tf.data.Dataset:
    """Return batches of [CLASS] A [SEPARATOR] C [SEPARATOR]; half of the second pieces come from elsewhere in the text.

    Masks and second pieces depend only on the seed and the step, so a resumed run draws the same.

    Args:
        settings: What to read and how.
        input_context: A tf.distribute.InputContext, if several tasks share the data.

    Returns:
        (features, labels): input_ids, input_mask, segment_ids (B, S) int32; masked_lm_positions, masked_lm_ids (B, P)
        int32; masked_lm_weights (B, P) float32; labels (B,) int32: 0 where the pieces follow each other, else 1.

    Raises:
        SettingsError: If the file is missing or holds less than one batch.
    """
    assert settings.data_file is not None
    sequence = settings.max_sequence_length
    first_length = (sequence - 3) // 2
    second_length = sequence - 3 - first_length
    stride = first_length + second_length
    num_bytes, text = text_bytes(settings.data_file)
    num_pairs = num_bytes // stride
    what = f"data_file {settings.data_file!r} holds {num_pairs} pairs of {stride} bytes"
    batches = batches_of(num_pairs, settings, input_context, what)

    def draw_pairs(step: tf.Tensor, index_B: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        batch = settings.batch_size
        key = tf.stack([tf.constant(settings.shuffle_seed, tf.int64), step])
        keys = tf.unstack(tf.random.experimental.stateless_split(key, 5))
        start_B = index_B * stride
        labels_B = tf.random.stateless_uniform([batch], keys[0], maxval=2, dtype=tf.int32)
        elsewhere_B = tf.random.stateless_uniform([batch], keys[1], maxval=num_pairs, dtype=tf.int64) * stride
        second_B = tf.where(tf.equal(labels_B, IS_NEXT), start_B, elsewhere_B) + first_length
        first_BA = tf.gather(text, start_B[:, None] + tf.range(first_length, dtype=tf.int64)[None, :])
        second_BC = tf.gather(text, second_B[:, None] + tf.range(second_length, dtype=tf.int64)[None, :])
        special = [tf.fill([batch, 1], token) for token in (CLASS, SEPARATOR, SEPARATOR)]
        pieces = [special[0], tf.cast(first_BA, tf.int32), special[1], tf.cast(second_BC, tf.int32), special[2]]
        ids_BS = tf.ensure_shape(tf.concat(pieces, axis=1), [batch, sequence])
        features = _mask(ids_BS, settings, keys[2:])
        second_start = first_length + 2
        segment_S = tf.cast(tf.range(sequence) >= second_start, tf.int32)
        features["segment_ids"] = tf.tile(segment_S[None, :], [batch, 1])
        features["input_mask"] = tf.ones_like(ids_BS)
        return features, labels_B

    return batches.map(draw_pairs).prefetch(2)


def _mask(ids_BS: tf.Tensor, settings: BertTextInput, keys: list[tf.Tensor]) -> dict[str, tf.Tensor]:
    """Mask bytes as BERT does: 80 % of the drawn bytes become MASK, 10 % another byte, 10 % stay."""
    batch, sequence = ids_BS.shape.as_list()
    predictions = settings.max_predictions_per_seq
    drawn_BS = tf.random.stateless_uniform([batch, sequence], keys[0])
    drawn_BS = tf.where(ids_BS < CLASS, drawn_BS, -1.0)  # never a special token
    _, positions_BP = tf.math.top_k(drawn_BS, predictions, sorted=False)
    positions_BP = tf.sort(positions_BP, axis=-1)
    original_BP = tf.gather(ids_BS, positions_BP, batch_dims=1)
    kind_BP = tf.random.stateless_uniform([batch, predictions], keys[1])
    other_BP = tf.random.stateless_uniform([batch, predictions], keys[2], maxval=256, dtype=tf.int32)
    new_BP = tf.where(kind_BP < 0.8, MASK, tf.where(kind_BP < 0.9, other_BP, original_BP))
    # If masked_lm_prob asks for fewer than P masks, the other positions keep their byte and have weight 0.
    wanted = min(predictions, max(1, round((sequence - 3) * settings.masked_lm_prob)))
    rank_P = tf.range(predictions)
    weights_BP = tf.tile(tf.cast(rank_P < wanted, tf.float32)[None, :], [batch, 1])
    new_BP = tf.where(weights_BP > 0.0, new_BP, original_BP)
    row_BP = tf.tile(tf.range(batch)[:, None], [1, predictions])
    masked_BS = tf.tensor_scatter_nd_update(ids_BS, tf.stack([row_BP, positions_BP], axis=-1), new_BP)
    return {
        "input_ids": masked_BS,
        "masked_lm_positions": positions_BP,
        "masked_lm_ids": original_BP,
        "masked_lm_weights": weights_BP,
    }
