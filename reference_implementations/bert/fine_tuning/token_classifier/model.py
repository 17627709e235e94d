"""BERT's classifier of each token as a model_fn (Devlin et al., arXiv 1810.04805, Section 5.3).

    # B batch, S sequence, H hidden, C classes

Variables beside the encoder's: output_logits (H, C).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from cerebras_tensorflow import CSEstimatorSpec
from reference_implementations.bert.encoder import encode
from reference_implementations.bert.fine_tuning.token_classifier.settings import TokenClassifierSettings
from reference_implementations.common.language_model import masked_mean, token_losses
from reference_implementations.common.layers.basic import dense, dropout, normal
from reference_implementations.common.optimizers.make import training_step
from reference_implementations.common.sections import OptimizerSettings
from reference_implementations.common.settings import check_section

IGNORED = -1  # label of a token without weight in loss and metrics


def model_fn(features: Mapping[str, tf.Tensor], labels: tf.Tensor, mode: str, params: Mapping[str, Any]) -> Any:
    """Return the CSEstimatorSpec of one step.

    Args:
        features: input_ids, input_mask, segment_ids (B, S) int32.
        labels: (B, S) int32, the class of each token, or IGNORED.
        mode: 'train', 'eval' or 'infer'.
        params: Sections `model` and `optimizer`.
    """
    settings = check_section(params["model"], TokenClassifierSettings, "model", "params")
    logits_BSC = token_logits(features, settings, is_training=mode == "train")
    label_BS = tf.argmax(logits_BSC, axis=-1, output_type=tf.int32)
    if mode == "infer":
        return CSEstimatorSpec(mode, predictions={"labels": label_BS})
    mask_BS = tf.cast(tf.not_equal(labels, IGNORED), tf.float32)
    known_BS = tf.maximum(labels, 0)
    loss = masked_mean(token_losses(logits_BSC, known_BS), mask_BS)
    if mode == "eval":
        return CSEstimatorSpec(mode, loss=loss, eval_metric_ops=_metrics(known_BS, label_BS, mask_BS))
    optimizer = check_section(params["optimizer"], OptimizerSettings, "optimizer", "params")
    tf.compat.v1.summary.scalar("train/loss", loss)
    return CSEstimatorSpec(mode, loss=loss, train_op=training_step(loss, optimizer))


def token_logits(features: Mapping[str, tf.Tensor], settings: TokenClassifierSettings, is_training: bool) -> tf.Tensor:
    """Return (B, S, C) float32 logits."""
    x_BSH, _ = encode(features["input_ids"], features["input_mask"], features["segment_ids"], settings, is_training)
    x_BSH = dropout(x_BSH, settings.encoder_output_dropout_rate, is_training)
    logits_BSC = dense("output_logits", x_BSH, settings.num_classes, normal(settings.initializer_range))
    return tf.cast(logits_BSC, tf.float32)


def _metrics(known_BS: tf.Tensor, label_BS: tf.Tensor, mask_BS: tf.Tensor) -> dict[str, Any]:
    """Return the accuracy over tokens that are not ignored, and the micro-averaged F1 over all classes except 0."""
    metrics = tf.compat.v1.metrics
    is_marked_BS, is_found_BS = tf.not_equal(known_BS, 0), tf.not_equal(label_BS, 0)
    is_right_BS = tf.logical_and(is_marked_BS, tf.equal(known_BS, label_BS))
    right, update_right = metrics.mean(tf.cast(is_right_BS, tf.float32), weights=mask_BS)
    marked, update_marked = metrics.mean(tf.cast(is_marked_BS, tf.float32), weights=mask_BS)
    found, update_found = metrics.mean(tf.cast(is_found_BS, tf.float32), weights=mask_BS)
    f1 = tf.math.divide_no_nan(2.0 * right, marked + found)
    return {
        "eval/accuracy": metrics.accuracy(known_BS, label_BS, weights=mask_BS),
        "eval/f1": (f1, tf.group(update_right, update_marked, update_found)),
    }
