"""Llama (Touvron et al., arXiv 2302.13971; shared key-value heads as in arXiv 2307.09288) as a model_fn.

    x = x + attention(norm(x));  x = x + down(silu(gate(norm(x))) * up(norm(x)))

    # B batch, S sequence, H hidden, N heads, G key-value heads, D head size, F filter, V vocabulary

Variables: input_embedding/embedding_weights (V, H); for block i under decoder/i/: attention_norm (H,),
attention/{q_proj (H, ND), k_proj, v_proj (H, GD), out_proj (ND, H)}, mlp_norm (H,), mlp/{gate_proj, up_proj (H, F),
down_proj (F, H)}; post_decoder_norm (H,); lm_head (H, V). Each name is doubled.
Layers have a kernel and no bias, norms only gamma.
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
    rotate_halves,
    split_heads,
)
from reference_implementations.common.layers.basic import (
    activation,
    dense,
    dropout,
    embed,
    embedding_table,
    normal,
    rms_norm,
    tied_logits,
)
from reference_implementations.common.settings import check_section
from reference_implementations.llama.settings import LlamaSettings


def model_fn(features: Mapping[str, tf.Tensor], labels: tf.Tensor, mode: str, params: Mapping[str, Any]) -> Any:
    """Return the CSEstimatorSpec of one step.

    Args:
        features: input_ids (B, S) int32, input_mask (B, S) int32 with 1 at tokens that count.
        labels: (B, S) int32, the next token at each position.
        mode: 'train', 'eval' or 'infer'.
        params: Sections `model` and `optimizer`.
    """
    settings = check_section(params["model"], LlamaSettings, "model", "params")

    def logits(input_ids_BS: tf.Tensor, is_training: bool) -> tf.Tensor:
        return llama_logits(input_ids_BS, settings, is_training)

    return language_model_spec(logits, features, labels, mode, params)


def llama_logits(input_ids_BS: tf.Tensor, settings: LlamaSettings, is_training: bool) -> tf.Tensor:
    """(B, S) int32 token ids -> (B, S, V) logits in the compute type."""
    dtype = tf.bfloat16 if settings.mixed_precision else tf.float32
    initializer = normal(settings.initializer_range)
    table_VH = embedding_table("input_embedding", settings.vocab_size, settings.hidden_size, initializer)
    x_BSH = dropout(embed(table_VH, input_ids_BS, dtype), settings.dropout_rate, is_training)
    bias_11SS = causal_bias(int(input_ids_BS.shape[1]))
    for index in range(settings.num_hidden_layers):
        with tf.compat.v1.variable_scope(f"decoder/{index}"):
            x_BSH = _block(x_BSH, bias_11SS, settings, is_training)
    x_BSH = rms_norm("post_decoder_norm", x_BSH, settings.layer_norm_epsilon)
    if settings.share_embedding_weights:
        return tied_logits(x_BSH, table_VH)
    return dense("lm_head", x_BSH, settings.vocab_size, initializer, use_bias=False)


def _block(x_BSH: tf.Tensor, bias_11SS: tf.Tensor, settings: LlamaSettings, is_training: bool) -> tf.Tensor:
    epsilon, rate = settings.layer_norm_epsilon, settings.dropout_rate
    normed_BSH = rms_norm("attention_norm", x_BSH, epsilon)
    with tf.compat.v1.variable_scope("attention"):
        x_BSH += dropout(_attention(normed_BSH, bias_11SS, settings, is_training), rate, is_training)
    normed_BSH = rms_norm("mlp_norm", x_BSH, epsilon)
    with tf.compat.v1.variable_scope("mlp"):
        x_BSH += dropout(_feed_forward(normed_BSH, settings), rate, is_training)
    return x_BSH


def _attention(x_BSH: tf.Tensor, bias_11SS: tf.Tensor, settings: LlamaSettings, is_training: bool) -> tf.Tensor:
    initializer = normal(settings.initializer_range)
    heads, groups = settings.num_heads, settings.kv_heads
    kv_size = settings.hidden_size // heads * groups
    q_BNSD = split_heads(dense("q_proj", x_BSH, settings.hidden_size, initializer, use_bias=False), heads)
    k_BGSD = split_heads(dense("k_proj", x_BSH, kv_size, initializer, use_bias=False), groups)
    v_BGSD = split_heads(dense("v_proj", x_BSH, kv_size, initializer, use_bias=False), groups)
    q_BNSD = rotate_halves(q_BNSD, settings.rope_theta)
    k_BGSD = rotate_halves(k_BGSD, settings.rope_theta)
    # Query head n uses key-value head n // (N / G).
    k_BNSD, v_BNSD = (tf.repeat(x, heads // groups, axis=1) if groups < heads else x for x in (k_BGSD, v_BGSD))
    y_BNSD = attend(q_BNSD, k_BNSD, v_BNSD, bias_11SS, settings.attention_dropout_rate, is_training)
    return dense("out_proj", merge_heads(y_BNSD), settings.hidden_size, initializer, use_bias=False)


def _feed_forward(x_BSH: tf.Tensor, settings: LlamaSettings) -> tf.Tensor:
    initializer = normal(settings.initializer_range)
    gate_BSF = activation(settings.nonlinearity, dense("gate_proj", x_BSH, settings.filter_size, initializer, False))
    up_BSF = dense("up_proj", x_BSH, settings.filter_size, initializer, use_bias=False)
    return dense("down_proj", gate_BSF * up_BSF, settings.hidden_size, initializer, use_bias=False)
