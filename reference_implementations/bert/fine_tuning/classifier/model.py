"""BERT's classifier of whole pieces of text as a model_fn (Devlin et al., arXiv 1810.04805, Section 4.1).

    # B batch, S sequence, H hidden, C classes

Variables beside the encoder's: cls_layer/cls_dense (H, H), cls_layer/cls_output_dense (H, C).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from cerebras_tensorflow import CSEstimatorSpec
from reference_implementations.bert.encoder import encode, pool
from reference_implementations.bert.fine_tuning.classifier.settings import ClassifierSettings
from reference_implementations.common.language_model import token_losses
from reference_implementations.common.layers.basic import dense, dropout, normal
from reference_implementations.common.optimizers.make import training_step
from reference_implementations.common.sections import OptimizerSettings
from reference_implementations.common.settings import check_section


def model_fn(features: Mapping[str, tf.Tensor], labels: tf.Tensor, mode: str, params: Mapping[str, Any]) -> Any:
    """Return the CSEstimatorSpec of one step.

    Args:
        features: input_ids, input_mask, segment_ids (B, S) int32.
        labels: (B,) int32, the class.
        mode: 'train', 'eval' or 'infer'.
        params: Sections `model` and `optimizer`.
    """
    settings = check_section(params["model"], ClassifierSettings, "model", "params")
    logits_BC = classifier_logits(features, settings, is_training=mode == "train")
    label_B = tf.argmax(logits_BC, axis=-1)
    if mode == "infer":
        return CSEstimatorSpec(mode, predictions={"label": label_B, "probabilities": tf.nn.softmax(logits_BC)})
    loss = tf.reduce_mean(token_losses(logits_BC, labels))
    if mode == "eval":
        return CSEstimatorSpec(
            mode, loss=loss, eval_metric_ops={"eval/accuracy": tf.compat.v1.metrics.accuracy(labels, label_B)}
        )
    optimizer = check_section(params["optimizer"], OptimizerSettings, "optimizer", "params")
    tf.compat.v1.summary.scalar("train/loss", loss)
    return CSEstimatorSpec(mode, loss=loss, train_op=training_step(loss, optimizer))


def classifier_logits(features: Mapping[str, tf.Tensor], settings: ClassifierSettings, is_training: bool) -> tf.Tensor:
    """Return (B, C) float32 logits."""
    x_BSH, _ = encode(features["input_ids"], features["input_mask"], features["segment_ids"], settings, is_training)
    with tf.compat.v1.variable_scope("cls_layer"):
        pooled_BH = dropout(pool(x_BSH, settings), settings.task_dropout, is_training)
        logits_BC = dense("cls_output_dense", pooled_BH, settings.num_labels, normal(settings.initializer_range))
    return tf.cast(logits_BC, tf.float32)
