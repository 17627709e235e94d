"""GPT-J (Wang and Komatsuzaki, 2021, github.com/kingoflolz/mesh-transformer-jax) as a model_fn.

A block adds attention and feed-forward of the same normed input to its own input, side by side:

    x = x + attention(norm(x)) + feed_forward(norm(x))

    # B batch, S sequence, H hidden, N heads, D head size, F filter, V vocabulary

Variables: input_embedding/embedding_weights (V, H); for block i gptj_decoder/i/ln_1/ln_1/{gamma, beta} (H,),
gptj_decoder/i/attn/{q,k,v,out}_proj/.../kernel (H, H), gptj_decoder/i/mlp/dense_layer_{2i}/.../{kernel (H, F), bias},
dense_layer_{2i+1}/.../{kernel (F, H), bias}; post_decoder_layer_norm/.../{gamma, beta}; lm_head/lm_head/{kernel (H, V),
bias (V,)}, or, with shared embeddings, only bias (V,).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from reference_implementations.common.language_model import language_model_spec
from reference_implementations.common.layers.attention import (
    attend,
    causal_bias,
    merge_heads,
    rotate_pairs,
    split_heads,
)
from reference_implementations.common.layers.basic import (
    activation,
    dense,
    dropout,
    embed,
    embedding_table,
    layer_norm,
    normal,
    numbered,
    tied_logits,
    variable,
    zeros,
)
from reference_implementations.common.settings import check_section
from reference_implementations.gptj.settings import GptjSettings


def model_fn(features: Mapping[str, tf.Tensor], labels: tf.Tensor, mode: str, params: Mapping[str, Any]) -> Any:
    """Return the CSEstimatorSpec of one step.

    Args:
        features: input_ids (B, S) int32, input_mask (B, S) int32 with 1 at tokens that count.
        labels: (B, S) int32, the next token at each position.
        mode: 'train', 'eval' or 'infer'.
        params: Sections `model` and `optimizer`.
    """
    settings = check_section(params["model"], GptjSettings, "model", "params")

    def logits(input_ids_BS: tf.Tensor, is_training: bool) -> tf.Tensor:
        return gptj_logits(input_ids_BS, settings, is_training)

    return language_model_spec(logits, features, labels, mode, params)


def gptj_logits(input_ids_BS: tf.Tensor, settings: GptjSettings, is_training: bool) -> tf.Tensor:
    """(B, S) int32 token ids -> (B, S, V) logits in the compute type."""
    dtype = tf.bfloat16 if settings.mixed_precision else tf.float32
    initializer = normal(settings.initializer_range)
    table_VH = embedding_table("input_embedding", settings.vocab_size, settings.hidden_size, initializer)
    x_BSH = dropout(embed(table_VH, input_ids_BS, dtype), settings.embedding_dropout_rate, is_training)
    bias_11SS = causal_bias(int(input_ids_BS.shape[1]))
    for index in range(settings.num_hidden_layers):
        with tf.compat.v1.variable_scope(f"gptj_decoder/{index}"):
            x_BSH = _block(x_BSH, bias_11SS, index, settings, is_training)
    x_BSH = layer_norm("post_decoder_layer_norm", x_BSH, settings.layer_norm_epsilon)
    if not settings.share_embedding_weights:
        return dense("lm_head", x_BSH, settings.vocab_size, initializer)
    return tied_logits(x_BSH, table_VH, variable("bias", [settings.vocab_size], zeros()))


def _block(x_BSH: tf.Tensor, bias_11SS: tf.Tensor, index: int, settings: GptjSettings, is_training: bool) -> tf.Tensor:
    normed_BSH = layer_norm("ln_1", x_BSH, settings.layer_norm_epsilon)
    with tf.compat.v1.variable_scope("attn"):
        attended_BSH = _attention(normed_BSH, bias_11SS, settings, is_training)
    with tf.compat.v1.variable_scope("mlp"):
        forwarded_BSH = _feed_forward(normed_BSH, index, settings)
    rate = settings.residual_dropout_rate
    return x_BSH + dropout(attended_BSH, rate, is_training) + dropout(forwarded_BSH, rate, is_training)


def _attention(x_BSH: tf.Tensor, bias_11SS: tf.Tensor, settings: GptjSettings, is_training: bool) -> tf.Tensor:
    initializer = normal(settings.initializer_range)
    q_BNSD, k_BNSD, v_BNSD = (
        split_heads(dense(name, x_BSH, settings.hidden_size, initializer, use_bias=False), settings.num_heads)
        for name in ("q_proj", "k_proj", "v_proj")
    )
    q_BNSD = rotate_pairs(q_BNSD, settings.rotary_dim)
    k_BNSD = rotate_pairs(k_BNSD, settings.rotary_dim)
    y_BNSD = attend(q_BNSD, k_BNSD, v_BNSD, bias_11SS, settings.attention_dropout_rate, is_training)
    return dense("out_proj", merge_heads(y_BNSD), settings.hidden_size, initializer, use_bias=False)


def _feed_forward(x_BSH: tf.Tensor, index: int, settings: GptjSettings) -> tf.Tensor:
    initializer = normal(settings.initializer_range)
    y_BSF = dense(numbered("dense_layer", 2 * index), x_BSH, settings.filter_size, initializer)
    return dense(
        numbered("dense_layer", 2 * index + 1),
        activation(settings.nonlinearity, y_BSF),
        settings.hidden_size,
        initializer,
    )
