"""Loss and metrics of a model that predicts tokens.

# B batch, S sequence, V vocabulary
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from cerebras_tensorflow import CSEstimatorSpec
from reference_implementations.common.optimizers.make import training_step
from reference_implementations.common.sections import OptimizerSettings
from reference_implementations.common.settings import check_section


def language_model_spec(
    logits: Callable[[tf.Tensor, bool], tf.Tensor],
    features: Mapping[str, tf.Tensor],
    labels_BS: tf.Tensor,
    mode: str,
    params: Mapping[str, Any],
) -> Any:
    """Return the CSEstimatorSpec of a model that predicts the next token.

    Args:
        logits: (input_ids (B, S) int32, is_training) -> (B, S, V).
        features: input_ids (B, S) int32, input_mask (B, S) int32 with 1 at tokens that count.
        labels_BS: int32, the next token at each position.
        mode: 'train', 'eval' or 'infer'.
        params: Section `optimizer`; section `eval_input`, for the name of a metric.
    """
    logits_BSV = logits(features["input_ids"], mode == "train")
    if mode == "infer":
        return CSEstimatorSpec(mode, predictions={"next_token": tf.argmax(logits_BSV, axis=-1)})
    mask_BS = features["input_mask"]
    loss = masked_mean(token_losses(logits_BSV, labels_BS), mask_BS)
    if mode == "eval":
        # Tokens are bytes only if the data is a plain text.
        unit = "byte" if params.get("eval_input", {}).get("data_file") else "token"
        metrics = language_model_metrics(logits_BSV, labels_BS, mask_BS, unit)
        return CSEstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
    optimizer = check_section(params["optimizer"], OptimizerSettings, "optimizer", "params")
    tf.compat.v1.summary.scalar("train/loss", loss)
    return CSEstimatorSpec(mode, loss=loss, train_op=training_step(loss, optimizer))


def token_losses(logits_BSV: tf.Tensor, labels_BS: tf.Tensor) -> tf.Tensor:
    """(B, S) float32 cross-entropies [nats]."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels_BS, logits=tf.cast(logits_BSV, tf.float32))


def masked_mean(losses_BS: tf.Tensor, mask_BS: tf.Tensor) -> tf.Tensor:
    """() float32 mean over the positions where the mask is 1; 0 if there is no such position."""
    weights_BS = tf.cast(mask_BS, tf.float32)
    return tf.reduce_sum(losses_BS * weights_BS) / tf.maximum(tf.reduce_sum(weights_BS), 1.0)


def language_model_metrics(
    logits_BSV: tf.Tensor, labels_BS: tf.Tensor, mask_BS: tf.Tensor, unit: str = "token"
) -> dict[str, tuple[tf.Tensor, tf.Operation]]:
    """Return eval/accuracy, eval/lm_perplexity and eval/bits_per_token as (value, update) pairs.

    Args:
        logits_BSV: As `token_losses` takes them.
        labels_BS: As `token_losses` takes them.
        mask_BS: 1 at tokens that count.
        unit: What a token is; 'byte' renames the last metric eval/bits_per_byte.
    """
    weights_BS = tf.cast(mask_BS, tf.float32)
    accuracy = tf.compat.v1.metrics.accuracy(labels_BS, tf.argmax(logits_BSV, axis=-1), weights=weights_BS)
    mean_loss, update = tf.compat.v1.metrics.mean(token_losses(logits_BSV, labels_BS), weights=weights_BS)
    return {
        "eval/accuracy": accuracy,
        "eval/lm_perplexity": (tf.exp(mean_loss), update),
        f"eval/bits_per_{unit}": (mean_loss / math.log(2.0), update),
    }
