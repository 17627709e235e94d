"""BERT's pre-training as a model_fn: fill in masked tokens, and tell whether two pieces follow each other.

    # B batch, S sequence, H hidden, P predictions, V vocabulary

Variables beside the encoder's: cls_layer/cls_dense (H, H), cls_layer/cls_output_dense (H, 2), mlm_layer/mlm_ffn (H, H),
mlm_layer/mlm_layer_norm, mlm_layer/mlm_bias (V,); the output layer's kernel is the embedding table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from cerebras_tensorflow import CSEstimatorSpec
from reference_implementations.bert.encoder import encode, pool
from reference_implementations.bert.settings import BertSettings
from reference_implementations.common.language_model import masked_mean, token_losses
from reference_implementations.common.layers.basic import (
    activation,
    dense,
    layer_norm,
    normal,
    tied_logits,
    variable,
    zeros,
)
from reference_implementations.common.optimizers.make import training_step
from reference_implementations.common.sections import OptimizerSettings
from reference_implementations.common.settings import check_section


def model_fn(features: Mapping[str, tf.Tensor], labels: tf.Tensor, mode: str, params: Mapping[str, Any]) -> Any:
    """Return the CSEstimatorSpec of one step.

    Args:
        features: input_ids, input_mask, segment_ids (B, S) int32; masked_lm_positions, masked_lm_ids (B, P) int32;
            masked_lm_weights (B, P) float32.
        labels: (B,) int32, 0 where the pieces follow each other, else 1.
        mode: 'train', 'eval' or 'infer'.
        params: Sections `model` and `optimizer`.
    """
    settings = check_section(params["model"], BertSettings, "model", "params")
    token_logits_BPV, class_logits_B2 = pretraining_logits(features, settings, is_training=mode == "train")
    if mode == "infer":
        return CSEstimatorSpec(
            mode,
            predictions={
                "masked_lm_ids": tf.argmax(token_logits_BPV, axis=-1),
                "next_sentence": tf.argmax(class_logits_B2, axis=-1),
            },
        )
    losses_BP = token_losses(token_logits_BPV, features["masked_lm_ids"])
    token_loss = masked_mean(losses_BP, features["masked_lm_weights"])
    class_loss = tf.reduce_mean(token_losses(class_logits_B2, labels))
    loss = token_loss if settings.disable_nsp else token_loss + class_loss
    if mode == "eval":
        weights_BP = features["masked_lm_weights"]
        mean_loss, update = tf.compat.v1.metrics.mean(losses_BP, weights=weights_BP)
        metrics = {
            "eval/accuracy_masked_lm": tf.compat.v1.metrics.accuracy(
                features["masked_lm_ids"], tf.argmax(token_logits_BPV, axis=-1), weights=weights_BP
            ),
            "eval/mlm_perplexity": (tf.exp(mean_loss), update),
        }
        if not settings.disable_nsp:
            metrics["eval/accuracy_cls"] = tf.compat.v1.metrics.accuracy(labels, tf.argmax(class_logits_B2, axis=-1))
        return CSEstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
    optimizer = check_section(params["optimizer"], OptimizerSettings, "optimizer", "params")
    tf.compat.v1.summary.scalar("train/mlm_loss", token_loss)
    if not settings.disable_nsp:
        tf.compat.v1.summary.scalar("train/cls_loss", class_loss)
    return CSEstimatorSpec(mode, loss=loss, train_op=training_step(loss, optimizer))


def pretraining_logits(
    features: Mapping[str, tf.Tensor], settings: BertSettings, is_training: bool
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return (B, P, V) logits of the tokens at masked_lm_positions and (B, 2) of whether the pieces follow."""
    x_BSH, table_VH = encode(
        features["input_ids"], features["input_mask"], features["segment_ids"], settings, is_training
    )
    initializer = normal(settings.initializer_range)
    with tf.compat.v1.variable_scope("cls_layer"):
        class_logits_B2 = dense("cls_output_dense", pool(x_BSH, settings), 2, initializer)
    with tf.compat.v1.variable_scope("mlm_layer"):
        bias_V = variable("mlm_bias", [settings.vocab_size], zeros())
        masked_BPH = tf.gather(x_BSH, features["masked_lm_positions"], batch_dims=1)
        y_BPH = activation(settings.nonlinearity, dense("mlm_ffn", masked_BPH, settings.hidden_size, initializer))
        y_BPH = layer_norm("mlm_layer_norm", y_BPH, settings.layer_norm_epsilon)
        token_logits_BPV = tied_logits(y_BPH, table_VH, bias_V)
    return token_logits_BPV, class_logits_B2
