"""GPT-2 (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019) as a model_fn.

    x = x + attention(norm(x));  x = x + feed_forward(norm(x))

    # B batch, S sequence, H hidden, N heads, D head size, F filter, P positions, V vocabulary

Variables: input_embedding/embedding_weights (V, H), position_embedding/position_embedding_weights (P, H); for block i
under decoder/: layer_normalization_layer_{3i}, self_attention_i/{q,k,v}_projection and output_transform (H, H),
layer_normalization_layer_{3i+2}, ffn_i/dense_layer_{2i} (H, F) and dense_layer_{2i+1} (F, H), each name is doubled and
the number 0 left out; post_decoder_layer_norm; if embeddings are not shared, lm_output_layer (H, V).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from reference_implementations.common.language_model import language_model_spec
from reference_implementations.common.layers.attention import causal_bias
from reference_implementations.common.layers.basic import (
    dense,
    dropout,
    embed,
    embedding_table,
    layer_norm,
    normal,
    numbered,
    tied_logits,
    variable,
)
from reference_implementations.common.layers.transformer import feed_forward, self_attention
from reference_implementations.common.settings import check_section
from reference_implementations.gpt2.settings import Gpt2Settings


def model_fn(features: Mapping[str, tf.Tensor], labels: tf.Tensor, mode: str, params: Mapping[str, Any]) -> Any:
    """Return the CSEstimatorSpec of one step.

    Args:
        features: input_ids (B, S) int32, input_mask (B, S) int32 with 1 at tokens that count.
        labels: (B, S) int32, the next token at each position.
        mode: 'train', 'eval' or 'infer'.
        params: Sections `model` and `optimizer`.
    """
    settings = check_section(params["model"], Gpt2Settings, "model", "params")

    def logits(input_ids_BS: tf.Tensor, is_training: bool) -> tf.Tensor:
        return gpt2_logits(input_ids_BS, settings, is_training)

    return language_model_spec(logits, features, labels, mode, params)


def gpt2_logits(input_ids_BS: tf.Tensor, settings: Gpt2Settings, is_training: bool) -> tf.Tensor:
    """(B, S) int32 token ids -> (B, S, V) logits in the compute type."""
    dtype = tf.bfloat16 if settings.mixed_precision else tf.float32
    initializer = normal(settings.initializer_range)
    sequence = int(input_ids_BS.shape[1])
    table_VH = embedding_table("input_embedding", settings.vocab_size, settings.hidden_size, initializer)
    with tf.compat.v1.variable_scope("position_embedding"):
        shape = [settings.max_position_embeddings, settings.hidden_size]
        positions_PH = variable("position_embedding_weights", shape, initializer)
    x_BSH = embed(table_VH, input_ids_BS, dtype) + tf.cast(positions_PH[:sequence], dtype)
    x_BSH = dropout(x_BSH, settings.dropout_rate, is_training)
    bias_11SS = causal_bias(sequence)
    with tf.compat.v1.variable_scope("decoder"):
        for index in range(settings.num_hidden_layers):
            x_BSH = _block(x_BSH, bias_11SS, index, settings, is_training)
    x_BSH = layer_norm("post_decoder_layer_norm", x_BSH, settings.layer_norm_epsilon)
    if settings.share_embedding_weights:
        return tied_logits(x_BSH, table_VH)
    return dense("lm_output_layer", x_BSH, settings.vocab_size, initializer, use_bias=False)


def _block(x_BSH: tf.Tensor, bias_11SS: tf.Tensor, index: int, settings: Gpt2Settings, is_training: bool) -> tf.Tensor:
    epsilon, rate = settings.layer_norm_epsilon, settings.dropout_rate
    initializer = normal(settings.initializer_range)
    # Number 3i + 1 belongs to the norm before cross-attention, which a decoder without an encoder does not have.
    normed_BSH = layer_norm(numbered("layer_normalization_layer", 3 * index), x_BSH, epsilon)
    with tf.compat.v1.variable_scope(numbered("self_attention", index)):
        y_BSH = self_attention(
            normed_BSH, bias_11SS, settings.num_heads, initializer, settings.attention_dropout_rate, is_training
        )
        x_BSH += dropout(y_BSH, rate, is_training)
    normed_BSH = layer_norm(numbered("layer_normalization_layer", 3 * index + 2), x_BSH, epsilon)
    with tf.compat.v1.variable_scope(numbered("ffn", index)):
        y_BSH = feed_forward(normed_BSH, index, settings.filter_size, settings.nonlinearity, initializer)
        x_BSH += dropout(y_BSH, rate, is_training)
    return x_BSH
