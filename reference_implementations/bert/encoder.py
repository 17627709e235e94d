"""BERT's encoder (Devlin et al., arXiv 1810.04805): norms follow attention and feed-forward.

    x = norm(x + attention(x));  x = norm(x + feed_forward(x))

    # B batch, S sequence, H hidden, N heads, D head size, F filter, P positions, V vocabulary

Variables: input_embedding/embedding_weights (V, H), position_embedding/position_embedding_weights (P, H),
segment_embedding/segment_embedding_weights (2, H), pre_encoder_layer_norm; for block i under encoder/:
self_attention_i/{q,k,v}_projection and output_transform (H, H), layer_normalization_layer_{2i}, ffn_i/dense_layer_{2i}
(H, F) and dense_layer_{2i+1} (F, H), layer_normalization_layer_{2i+1}; names are doubled, 0 is left out.
"""

from __future__ import annotations

import tensorflow as tf

from reference_implementations.bert.settings import BertSettings
from reference_implementations.common.layers.attention import padding_bias
from reference_implementations.common.layers.basic import (
    dense,
    dropout,
    embed,
    embedding_table,
    layer_norm,
    normal,
    numbered,
    variable,
)
from reference_implementations.common.layers.transformer import feed_forward, self_attention


def encode(
    ids_BS: tf.Tensor, mask_BS: tf.Tensor, segments_BS: tf.Tensor, settings: BertSettings, is_training: bool
) -> tuple[tf.Tensor, tf.Variable]:
    """Return the last block's output (B, S, H) in the compute type, and the embedding table (V, H).

    Args:
        ids_BS: Tokens, int32.
        mask_BS: 1 at tokens, 0 at padding.
        segments_BS: 0 in the first piece, 1 in the second.
        settings: Section `model`.
        is_training: Whether to apply dropout.
    """
    dtype = tf.bfloat16 if settings.mixed_precision else tf.float32
    initializer = normal(settings.initializer_range)
    table_VH = embedding_table("input_embedding", settings.vocab_size, settings.hidden_size, initializer)
    x_BSH = embed(table_VH, ids_BS, dtype)
    with tf.compat.v1.variable_scope("position_embedding"):
        shape = [settings.max_position_embeddings, settings.hidden_size]
        positions_PH = variable("position_embedding_weights", shape, initializer)
    x_BSH += tf.cast(positions_PH[: int(ids_BS.shape[1])], dtype)
    with tf.compat.v1.variable_scope("segment_embedding"):
        segment_table = variable("segment_embedding_weights", [2, settings.hidden_size], initializer)
    x_BSH += embed(segment_table, segments_BS, dtype)
    x_BSH = layer_norm("pre_encoder_layer_norm", x_BSH, settings.layer_norm_epsilon)
    x_BSH = dropout(x_BSH, settings.dropout_rate, is_training)
    bias_B11S = padding_bias(mask_BS)
    with tf.compat.v1.variable_scope("encoder"):
        for index in range(settings.num_hidden_layers):
            x_BSH = _block(x_BSH, bias_B11S, index, settings, is_training)
    return x_BSH, table_VH


def pool(x_BSH: tf.Tensor, settings: BertSettings) -> tf.Tensor:
    """Return tanh of the dense layer cls_dense on the first position, (B, H)."""
    return tf.tanh(dense("cls_dense", x_BSH[:, 0], settings.hidden_size, normal(settings.initializer_range)))


def _block(x_BSH: tf.Tensor, bias_B11S: tf.Tensor, index: int, settings: BertSettings, is_training: bool) -> tf.Tensor:
    epsilon, rate = settings.layer_norm_epsilon, settings.dropout_rate
    initializer = normal(settings.initializer_range)
    with tf.compat.v1.variable_scope(numbered("self_attention", index)):
        y_BSH = self_attention(
            x_BSH, bias_B11S, settings.num_heads, initializer, settings.attention_dropout_rate, is_training
        )
        y_BSH = dropout(y_BSH, rate, is_training)
    x_BSH = layer_norm(numbered("layer_normalization_layer", 2 * index), x_BSH + y_BSH, epsilon)
    with tf.compat.v1.variable_scope(numbered("ffn", index)):
        y_BSH = feed_forward(x_BSH, index, settings.filter_size, settings.nonlinearity, initializer)
        y_BSH = dropout(y_BSH, rate, is_training)
    return layer_norm(numbered("layer_normalization_layer", 2 * index + 1), x_BSH + y_BSH, epsilon)
