"""The two halves of a block, which GPT-2 and BERT share; variable names are those of the public Model Zoo.

# B batch, S sequence, H hidden, N heads, D head size, F filter
"""

from __future__ import annotations

import tensorflow as tf

from reference_implementations.common.layers.attention import attend, merge_heads, split_heads
from reference_implementations.common.layers.basic import activation, dense, numbered


def self_attention(
    x_BSH: tf.Tensor,
    bias: tf.Tensor,
    num_heads: int,
    initializer: object,
    dropout_rate: float,
    is_training: bool,
) -> tf.Tensor:
    """Return attention of a sequence to itself, (B, S, H); variables {q,k,v}_projection and output_transform (H, H).

    Args:
        x_BSH: In the compute type.
        bias: float32, added to the scores; (B or 1, 1, S or 1, S).
        num_heads: N.
        initializer: For the kernels.
        dropout_rate: For the attention weights, in training.
        is_training: Whether to apply dropout.
    """
    hidden = int(x_BSH.shape[-1])
    q_BNSD, k_BNSD, v_BNSD = (
        split_heads(dense(f"{part}_projection", x_BSH, hidden, initializer), num_heads) for part in ("q", "k", "v")
    )
    y_BNSD = attend(q_BNSD, k_BNSD, v_BNSD, bias, dropout_rate, is_training)
    return dense("output_transform", merge_heads(y_BNSD), hidden, initializer)


def feed_forward(x_BSH: tf.Tensor, index: int, filter_size: int, nonlinearity: str, initializer: object) -> tf.Tensor:
    """Return feed-forward `index` of x, (B, S, H); variables dense_layer_{2i} (H, F) and {2i+1} (F, H)."""
    y_BSF = dense(numbered("dense_layer", 2 * index), x_BSH, filter_size, initializer)
    y_BSF = activation(nonlinearity, y_BSF)
    return dense(numbered("dense_layer", 2 * index + 1), y_BSF, int(x_BSH.shape[-1]), initializer)
