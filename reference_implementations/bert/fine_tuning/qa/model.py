"""BERT that marks where an answer begins and ends (Devlin et al., arXiv 1810.04805, Section 4.2), as a model_fn.

    # B batch, S sequence, H hidden

Variables beside the encoder's: qa_logits (H, 2).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from cerebras_tensorflow import CSEstimatorSpec
from reference_implementations.bert.encoder import encode
from reference_implementations.bert.settings import BertSettings
from reference_implementations.common.language_model import token_losses
from reference_implementations.common.layers.basic import dense, normal
from reference_implementations.common.optimizers.make import training_step
from reference_implementations.common.sections import OptimizerSettings
from reference_implementations.common.settings import check_section


def model_fn(features: Mapping[str, tf.Tensor], labels: tf.Tensor, mode: str, params: Mapping[str, Any]) -> Any:
    """Return the CSEstimatorSpec of one step.

    Args:
        features: input_ids, input_mask, segment_ids (B, S) int32.
        labels: (B, 2) int32, positions of the answer's first and last token.
        mode: 'train', 'eval' or 'infer'.
        params: Sections `model` and `optimizer`.
    """
    settings = check_section(params["model"], BertSettings, "model", "params")
    logits_B2S = tf.transpose(span_logits(features, settings, is_training=mode == "train"), [0, 2, 1])
    span_B2 = tf.argmax(logits_B2S, axis=-1, output_type=tf.int32)
    if mode == "infer":
        return CSEstimatorSpec(mode, predictions={"start_position": span_B2[:, 0], "end_position": span_B2[:, 1]})
    loss = tf.reduce_mean(token_losses(logits_B2S, labels))
    if mode == "eval":
        is_right_B2 = tf.cast(tf.equal(span_B2, labels), tf.float32)
        metrics = {
            "eval/exact_match": tf.compat.v1.metrics.mean(tf.reduce_min(is_right_B2, axis=-1)),
            "eval/accuracy_start": tf.compat.v1.metrics.mean(is_right_B2[:, 0]),
        }
        return CSEstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
    optimizer = check_section(params["optimizer"], OptimizerSettings, "optimizer", "params")
    tf.compat.v1.summary.scalar("train/loss", loss)
    return CSEstimatorSpec(mode, loss=loss, train_op=training_step(loss, optimizer))


def span_logits(features: Mapping[str, tf.Tensor], settings: BertSettings, is_training: bool) -> tf.Tensor:
    """Return (B, S, 2) float32 logits: of each position being the answer's first, and its last."""
    x_BSH, _ = encode(features["input_ids"], features["input_mask"], features["segment_ids"], settings, is_training)
    return tf.cast(dense("qa_logits", x_BSH, 2, normal(settings.initializer_range)), tf.float32)
