"""Scaled dot-product attention and rotary positions.

# B batch, S sequence (queries), T sequence (keys), H hidden, N heads, D head size, R rotated part of D
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from reference_implementations.common.layers.basic import dropout

MASKED = -1e9  # in float32, before the softmax


def split_heads(x_BSH: tf.Tensor, num_heads: int) -> tf.Tensor:
    """(B, S, H) -> (B, N, S, D)."""
    _, sequence, hidden = x_BSH.shape.as_list()
    x_BSND = tf.reshape(x_BSH, [-1, sequence, num_heads, hidden // num_heads])
    return tf.transpose(x_BSND, [0, 2, 1, 3])


def merge_heads(x_BNSD: tf.Tensor) -> tf.Tensor:
    """(B, N, S, D) -> (B, S, H)."""
    _, heads, sequence, size = x_BNSD.shape.as_list()
    return tf.reshape(tf.transpose(x_BNSD, [0, 2, 1, 3]), [-1, sequence, heads * size])


def causal_bias(sequence: int) -> tf.Tensor:
    """(1, 1, S, T) float32: 0 at keys that a query may use, MASKED at later keys."""
    later_ST = np.triu(np.ones([sequence, sequence], np.float32), k=1)
    return tf.constant(later_ST[None, None] * MASKED)


def padding_bias(mask_BT: tf.Tensor) -> tf.Tensor:
    """(B, 1, 1, T) float32: 0 at tokens, where the mask is 1; MASKED at padding."""
    return (1.0 - tf.cast(mask_BT, tf.float32))[:, None, None, :] * MASKED


def attend(
    q_BNSD: tf.Tensor,
    k_BNTD: tf.Tensor,
    v_BNTD: tf.Tensor,
    bias_BNST: tf.Tensor | None,
    dropout_rate: float,
    is_training: bool,
    scale: float | None = None,
) -> tf.Tensor:
    """Return softmax(q k^T / sqrt(D) + bias) v.

    Args:
        q_BNSD: Queries, in the compute type.
        k_BNTD: Keys.
        v_BNTD: Values.
        bias_BNST: float32, added before the softmax; broadcast where a dim is 1.
        dropout_rate: For the attention weights, in training.
        is_training: Whether to apply dropout.
        scale: Factor of q k^T; 1 / sqrt(D) by default.

    Returns:
        (B, N, S, D) in the compute type; the softmax is in float32.
    """
    if scale is None:
        scale = float(q_BNSD.shape[-1]) ** -0.5
    scores_BNST = tf.cast(tf.matmul(q_BNSD, k_BNTD, transpose_b=True), tf.float32) * scale
    if bias_BNST is not None:
        scores_BNST += bias_BNST
    weights_BNST = dropout(tf.nn.softmax(scores_BNST, axis=-1), dropout_rate, is_training)
    return tf.matmul(tf.cast(weights_BNST, v_BNTD.dtype), v_BNTD)


def rotate_pairs(x_BNSD: tf.Tensor, rotary_dim: int, base: float = 10000.0) -> tf.Tensor:
    """Rotate the pairs (x0, x1), (x2, x3), ... of the first R elements of each head by position-dependent angles.

    Rotary positions of Su et al. (arXiv 2104.09864, Section 3.2.2); neighbours form a pair, as in GPT-J.

    Args:
        x_BNSD: Queries or keys.
        rotary_dim: R, even; later elements do not change.
        base: Pair i rotates by position * base ** (-2 i / R).
    """
    sequence = x_BNSD.shape.as_list()[2]
    frequencies_R = base ** (-np.arange(0, rotary_dim, 2) / rotary_dim)
    angles_SR = np.arange(sequence)[:, None] * frequencies_R[None, :]
    cos_SR = tf.constant(np.cos(angles_SR), x_BNSD.dtype)
    sin_SR = tf.constant(np.sin(angles_SR), x_BNSD.dtype)
    turned, rest = x_BNSD[..., :rotary_dim], x_BNSD[..., rotary_dim:]
    even, odd = turned[..., 0::2], turned[..., 1::2]
    pairs = tf.stack([even * cos_SR - odd * sin_SR, even * sin_SR + odd * cos_SR], axis=-1)
    heads = x_BNSD.shape.as_list()[1]
    turned = tf.reshape(pairs, [-1, heads, sequence, rotary_dim])
    return tf.concat([turned, rest], axis=-1)


def rotate_halves(x_BNSD: tf.Tensor, base: float = 10000.0) -> tf.Tensor:
    """As `rotate_pairs` over all of D, but element i forms a pair with element i + D / 2, as in GPT-NeoX and Llama."""
    sequence, size = x_BNSD.shape.as_list()[2:]
    frequencies = base ** (-np.arange(0, size, 2) / size)
    angles = np.arange(sequence)[:, None] * frequencies[None, :]
    cos, sin = tf.constant(np.cos(angles), x_BNSD.dtype), tf.constant(np.sin(angles), x_BNSD.dtype)
    first, second = x_BNSD[..., : size // 2], x_BNSD[..., size // 2 :]
    return tf.concat([first * cos - second * sin, first * sin + second * cos], axis=-1)
