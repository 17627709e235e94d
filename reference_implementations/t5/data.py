"""Plain text -> batches with missing spans (Raffel et al., arXiv 1910.10683, Section 3.1.4).

TFRecord files hold input_ids, decoder_input_ids and labels as int64, with the spans already cut out; `records.py`
makes them.

Differs from the paper: spans have one length, and one lies in each equal part of a sample, so that shapes are fixed.

    # B batch, K spans, G bytes of a part, L bytes of a span
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from reference_implementations.common.data.records import record_dataset
from reference_implementations.common.data.sample_order import batches_of, text_bytes
from reference_implementations.common.settings import check_section
from reference_implementations.t5.records import END, FIRST_SENTINEL, START
from reference_implementations.t5.settings import EvalSpanInput, SpanInput, TrainSpanInput


def train_input_fn(params: Mapping[str, Any], input_context: Any = None) -> tf.data.Dataset:
    """Return the training batches of section `train_input`."""
    return _dataset(check_section(params["train_input"], TrainSpanInput, "train_input", "params"), input_context)


def eval_input_fn(params: Mapping[str, Any], input_context: Any = None) -> tf.data.Dataset:
    """Return the evaluation batches of section `eval_input`."""
    return _dataset(check_section(params["eval_input"], EvalSpanInput, "eval_input", "params"), input_context)


def _dataset(settings: SpanInput, input_context: Any) -> tf.data.Dataset:
    if settings.data_file is not None:
        return span_dataset(settings, input_context)
    lengths = {"input_ids": settings.max_sequence_length}
    lengths |= dict.fromkeys(("decoder_input_ids", "labels"), settings.max_target_length)
    specification = {name: tf.io.FixedLenFeature([length], tf.int64) for name, length in lengths.items()}
    return record_dataset(settings, specification, input_context)


def span_dataset(settings: SpanInput, input_context: Any = None) -> tf.data.Dataset:
    """Return batches: the text with a sentinel for each missing span, and the spans, each after its sentinel.

    The places of the spans depend only on the seed and the step, so a resumed run draws the same.

    Args:
        settings: What to read and how.
        input_context: A tf.distribute.InputContext, if several tasks share the data.

    Returns:
        (features, labels): input_ids (B, K (G - L + 1)), decoder_input_ids and labels (B, K (L + 1) + 1), int32.

    Raises:
        SettingsError: If the file is missing or holds less than one batch.
    """
    assert settings.data_file is not None
    sequence = settings.max_sequence_length
    num_bytes, text = text_bytes(settings.data_file)
    num_samples = num_bytes // sequence
    what = f"data_file {settings.data_file!r} holds {num_samples} pieces of {sequence} bytes"
    batches = batches_of(num_samples, settings, input_context, what)

    def draw_spans(step: tf.Tensor, index_B: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        batch, spans, length = settings.batch_size, settings.num_spans, settings.span_length
        part = sequence // spans
        positions = index_B[:, None] * sequence + tf.range(sequence, dtype=tf.int64)[None, :]
        text_BKG = tf.reshape(tf.cast(tf.gather(text, positions), tf.int32), [batch, spans, part])
        key = tf.stack([tf.constant(settings.shuffle_seed, tf.int64), step])
        offset_BK1 = tf.random.stateless_uniform([batch, spans, 1], key, maxval=part - length + 1, dtype=tf.int32)
        sentinel_BK1 = tf.tile(FIRST_SENTINEL + tf.range(spans)[None, :, None], [batch, 1, 1])

        rest = tf.range(part - length + 1)[None, None, :]
        source = tf.clip_by_value(tf.where(rest > offset_BK1, rest + length - 1, rest), 0, part - 1)
        kept = tf.gather(text_BKG, source, batch_dims=2)
        inputs = tf.reshape(tf.where(tf.equal(rest, offset_BK1), sentinel_BK1, kept), [batch, -1])

        missing = tf.gather(text_BKG, offset_BK1 + tf.range(length)[None, None, :], batch_dims=2)
        targets = tf.reshape(tf.concat([sentinel_BK1, missing], axis=-1), [batch, -1])
        labels = tf.concat([targets, tf.fill([batch, 1], END)], axis=1)
        decoder_inputs = tf.concat([tf.fill([batch, 1], START), targets], axis=1)
        features = {
            "input_ids": tf.ensure_shape(inputs, [batch, spans * (part - length + 1)]),
            "decoder_input_ids": tf.ensure_shape(decoder_inputs, [batch, spans * (length + 1) + 1]),
        }
        return features, tf.ensure_shape(labels, [batch, spans * (length + 1) + 1])

    return batches.map(draw_spans).prefetch(2)
