"""T5 (Raffel et al., arXiv 1910.10683) as a model_fn.

    # B batch, S sequence, T sequence (keys), H d_model, N heads, D d_kv, F d_ff, R buckets, V vocabulary

Variables: encoder_embedding/embedding_weights (V, H); {encoder,decoder}/relative_attention_bias (R, N); for block i
under encoder/ and decoder/: self_attention_i, in the decoder encoder_decoder_attention_i, each {q,k,v}_projection
(H, N D) and output_transform (N D, H), ffn_i/dense_layer (H, F), (F, H); each name is doubled, the number 0 left
out. The numbers of norms and dense layers continue from the encoder to the decoder. If embeddings are not shared:
lm_output_layer (H, V).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from cerebras_tensorflow import CSEstimatorSpec
from reference_implementations.common.language_model import token_losses
from reference_implementations.common.layers.attention import attend, causal_bias, merge_heads, split_heads
from reference_implementations.common.layers.basic import (
    activation,
    dense,
    dropout,
    embed,
    embedding_table,
    layer_norm,
    normal,
    numbered,
    rms_norm,
    tied_logits,
    variable,
)
from reference_implementations.common.optimizers.make import training_step
from reference_implementations.common.sections import OptimizerSettings
from reference_implementations.common.settings import check_section
from reference_implementations.t5.settings import T5Settings


def model_fn(features: Mapping[str, tf.Tensor], labels: tf.Tensor, mode: str, params: Mapping[str, Any]) -> Any:
    """Return the CSEstimatorSpec of one step.

    Args:
        features: input_ids (B, T), decoder_input_ids (B, S) int32.
        labels: (B, S) int32, the tokens that the decoder should predict.
        mode: 'train', 'eval' or 'infer'.
        params: Sections `model` and `optimizer`.
    """
    settings = check_section(params["model"], T5Settings, "model", "params")
    logits_BSV = t5_logits(features["input_ids"], features["decoder_input_ids"], settings, is_training=mode == "train")
    if mode == "infer":
        return CSEstimatorSpec(mode, predictions={"next_token": tf.argmax(logits_BSV, axis=-1)})
    losses_BS = token_losses(logits_BSV, labels)
    loss = tf.reduce_mean(losses_BS)
    if mode == "eval":
        mean_loss, update = tf.compat.v1.metrics.mean(losses_BS)
        metrics = {
            "eval/accuracy_lm": tf.compat.v1.metrics.accuracy(labels, tf.argmax(logits_BSV, axis=-1)),
            "eval/perplexity_lm": (tf.exp(mean_loss), update),
        }
        return CSEstimatorSpec(mode, loss=loss, eval_metric_ops=metrics)
    optimizer = check_section(params["optimizer"], OptimizerSettings, "optimizer", "params")
    tf.compat.v1.summary.scalar("train/loss", loss)
    return CSEstimatorSpec(mode, loss=loss, train_op=training_step(loss, optimizer))


def t5_logits(ids_BT: tf.Tensor, decoder_ids_BS: tf.Tensor, settings: T5Settings, is_training: bool) -> tf.Tensor:
    """Encoder tokens (B, T) and decoder tokens (B, S) int32 -> (B, S, V) logits in the compute type."""
    dtype = tf.bfloat16 if settings.mixed_precision else tf.float32
    rate = settings.dropout_rate
    table_VH = embedding_table("encoder_embedding", settings.src_vocab_size, settings.d_model, normal(1.0))
    x_BTH = dropout(embed(table_VH, ids_BT, dtype), rate, is_training)
    with tf.compat.v1.variable_scope("encoder"):
        bias = _position_bias(int(ids_BT.shape[1]), settings, is_bidirectional=True)
        for index in range(settings.encoder_num_hidden_layers):
            x_BTH = _encoder_block(x_BTH, bias, index, settings, is_training)
        last = numbered("layer_normalization_layer", 2 * settings.encoder_num_hidden_layers)
        encoded_BTH = dropout(_norm(last, x_BTH, settings), rate, is_training)
    y_BSH = dropout(embed(table_VH, decoder_ids_BS, dtype), rate, is_training)
    with tf.compat.v1.variable_scope("decoder"):
        sequence = int(decoder_ids_BS.shape[1])
        bias = _position_bias(sequence, settings, is_bidirectional=False) + causal_bias(sequence)
        for index in range(settings.decoder_num_hidden_layers):
            y_BSH = _decoder_block(y_BSH, encoded_BTH, bias, index, settings, is_training)
        first = 2 * settings.encoder_num_hidden_layers + 1
        last = numbered("layer_normalization_layer", first + 3 * settings.decoder_num_hidden_layers)
        y_BSH = dropout(_norm(last, y_BSH, settings), rate, is_training)
    if settings.share_embedding_weights:
        return tied_logits(y_BSH * settings.d_model**-0.5, table_VH)
    return dense("lm_output_layer", y_BSH, settings.src_vocab_size, normal(settings.d_model**-0.5), use_bias=False)


def relative_buckets(
    num_queries: int, num_keys: int, num_buckets: int, max_distance: int, is_bidirectional: bool
) -> np.ndarray:
    """Return the bucket of each distance, (S, T) int32: exact for short distances, logarithmic for long ones.

    Source:
        Raffel et al., Section 2.1: half of the buckets for exact distances, the rest up to max_distance. If
        queries see both sides, each side gets half of the buckets.
    """
    distance = np.arange(num_queries)[:, None] - np.arange(num_keys)[None, :]  # how far back the key lies
    bucket = np.zeros_like(distance)
    if is_bidirectional:
        num_buckets //= 2
        bucket += np.where(distance < 0, num_buckets, 0)
        distance = np.abs(distance)
    else:
        distance = np.maximum(distance, 0)
    exact = num_buckets // 2
    scaled = np.log(np.maximum(distance, 1).astype(np.float32) / exact) / np.log(max_distance / exact)
    far = np.minimum(exact + (scaled * (num_buckets - exact)).astype(np.int64), num_buckets - 1)
    return (bucket + np.where(distance < exact, distance, far)).astype(np.int32)


def _position_bias(length: int, settings: T5Settings, is_bidirectional: bool) -> tf.Tensor:
    """(1, N, S, S) float32, the same in every block of a stack."""
    buckets = settings.relative_attention_num_buckets
    table_RN = variable("relative_attention_bias", [buckets, settings.num_heads], normal(settings.d_model**-0.5))
    numbers = relative_buckets(length, length, buckets, settings.relative_attention_max_distance, is_bidirectional)
    return tf.transpose(tf.gather(table_RN, numbers), [2, 0, 1])[None]


def _encoder_block(x: tf.Tensor, bias: tf.Tensor, index: int, settings: T5Settings, is_training: bool) -> tf.Tensor:
    rate = settings.dropout_rate
    normed = _norm(numbered("layer_normalization_layer", 2 * index), x, settings)
    with tf.compat.v1.variable_scope(numbered("self_attention", index)):
        x += dropout(_attention(normed, normed, bias, settings, is_training), rate, is_training)
    normed = _norm(numbered("layer_normalization_layer", 2 * index + 1), x, settings)
    with tf.compat.v1.variable_scope(numbered("ffn", index)):
        x += dropout(_feed_forward(normed, 2 * index, settings, is_training), rate, is_training)
    return x


def _decoder_block(
    x: tf.Tensor, encoded: tf.Tensor, bias: tf.Tensor, index: int, settings: T5Settings, is_training: bool
) -> tf.Tensor:
    rate, first_norm = settings.dropout_rate, 2 * settings.encoder_num_hidden_layers + 1 + 3 * index
    normed = _norm(numbered("layer_normalization_layer", first_norm), x, settings)
    with tf.compat.v1.variable_scope(numbered("self_attention", index)):
        x += dropout(_attention(normed, normed, bias, settings, is_training), rate, is_training)
    normed = _norm(numbered("layer_normalization_layer", first_norm + 1), x, settings)
    with tf.compat.v1.variable_scope(numbered("encoder_decoder_attention", index)):
        x += dropout(_attention(normed, encoded, None, settings, is_training), rate, is_training)
    normed = _norm(numbered("layer_normalization_layer", first_norm + 2), x, settings)
    with tf.compat.v1.variable_scope(numbered("ffn", index)):
        number = 2 * (settings.encoder_num_hidden_layers + index)
        x += dropout(_feed_forward(normed, number, settings, is_training), rate, is_training)
    return x


def _norm(name: str, x: tf.Tensor, settings: T5Settings) -> tf.Tensor:
    norm = rms_norm if settings.use_t5_layer_norm else layer_norm
    return norm(name, x, settings.layer_norm_epsilon)


def _attention(
    x_BSH: tf.Tensor, keys_BTH: tf.Tensor, bias: tf.Tensor | None, settings: T5Settings, is_training: bool
) -> tf.Tensor:
    heads, hidden, size = settings.num_heads, settings.d_model, settings.d_kv
    q_BNSD = split_heads(dense("q_projection", x_BSH, heads * size, normal((hidden * size) ** -0.5), False), heads)
    k_BNTD = split_heads(dense("k_projection", keys_BTH, heads * size, normal(hidden**-0.5), False), heads)
    v_BNTD = split_heads(dense("v_projection", keys_BTH, heads * size, normal(hidden**-0.5), False), heads)
    # T5 does not divide by sqrt(D): the initializer of q includes that factor.
    y_BNSD = attend(q_BNSD, k_BNTD, v_BNTD, bias, settings.dropout_rate, is_training, scale=1.0)
    return dense("output_transform", merge_heads(y_BNSD), hidden, normal((heads * size) ** -0.5), use_bias=False)


def _feed_forward(x_BSH: tf.Tensor, number: int, settings: T5Settings, is_training: bool) -> tf.Tensor:
    y_BSF = dense(numbered("dense_layer", number), x_BSH, settings.d_ff, normal(settings.d_model**-0.5), False)
    y_BSF = dropout(activation(settings.nonlinearity, y_BSF), settings.dropout_rate, is_training)
    return dense(numbered("dense_layer", number + 1), y_BSF, settings.d_model, normal(settings.d_ff**-0.5), False)
