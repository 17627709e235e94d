"""Loss and metrics of a model that predicts tokens.

# B batch, S sequence, V vocabulary
"""

from __future__ import annotations

import math

import tensorflow as tf


def token_losses(logits_BSV: tf.Tensor, labels_BS: tf.Tensor) -> tf.Tensor:
    """(B, S) float32 cross-entropies [nats]."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels_BS, logits=tf.cast(logits_BSV, tf.float32))


def masked_mean(losses_BS: tf.Tensor, mask_BS: tf.Tensor) -> tf.Tensor:
    """() float32 mean over the positions where the mask is 1; 0 where there are none."""
    weights_BS = tf.cast(mask_BS, tf.float32)
    return tf.reduce_sum(losses_BS * weights_BS) / tf.maximum(tf.reduce_sum(weights_BS), 1.0)


def language_model_metrics(
    logits_BSV: tf.Tensor, labels_BS: tf.Tensor, mask_BS: tf.Tensor
) -> dict[str, tuple[tf.Tensor, tf.Operation]]:
    """Return eval/accuracy, eval/lm_perplexity and eval/bits_per_byte as (value, update) pairs.

    bits_per_byte is the mean loss in bits a token: a byte's only where a token is a byte.
    """
    weights_BS = tf.cast(mask_BS, tf.float32)
    accuracy = tf.compat.v1.metrics.accuracy(labels_BS, tf.argmax(logits_BSV, axis=-1), weights=weights_BS)
    mean_loss, update = tf.compat.v1.metrics.mean(token_losses(logits_BSV, labels_BS), weights=weights_BS)
    return {
        "eval/accuracy": accuracy,
        "eval/lm_perplexity": (tf.exp(mean_loss), update),
        "eval/bits_per_byte": (mean_loss / math.log(2.0), update),
    }
