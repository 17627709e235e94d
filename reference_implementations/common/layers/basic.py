"""Layers as functions on tf.compat.v1 variables.

Every weight is a resource variable. Layers read and cast it where they use it, so that weight streaming loads it for
that use only. A layer called `name` keeps its variables under `name/name/`, as in the public Model Zoo's checkpoints.

    # B batch, S sequence, I inputs, O outputs, H hidden, V vocabulary
"""

from __future__ import annotations

import tensorflow as tf


def variable(name: str, shape: list[int], initializer: object) -> tf.Variable:
    """Return the float32 resource variable `name` of the current variable scope."""
    return tf.compat.v1.get_variable(
        name, shape, dtype=tf.float32, initializer=initializer, use_resource=True, trainable=True
    )


def normal(stddev: float) -> object:
    """Return an initializer: normal, truncated at two standard deviations."""
    return tf.compat.v1.truncated_normal_initializer(stddev=stddev)


def zeros() -> object:
    """Return an initializer of zeros."""
    return tf.compat.v1.zeros_initializer()


def ones() -> object:
    """Return an initializer of ones."""
    return tf.compat.v1.ones_initializer()


def dense(name: str, x_BSI: tf.Tensor, num_outputs: int, initializer: object, use_bias: bool = True) -> tf.Tensor:
    """Return x @ kernel + bias.

    Args:
        name: Layer name; variables `name/name/kernel` (I, O) and `name/name/bias` (O,).
        x_BSI: (..., I) in the compute type.
        num_outputs: O.
        initializer: For the kernel; the bias starts at zero.
        use_bias: Whether to add a bias.

    Returns:
        (..., O) in the type of x.
    """
    with tf.compat.v1.variable_scope(f"{name}/{name}"):
        kernel_IO = variable("kernel", [int(x_BSI.shape[-1]), num_outputs], initializer)
        y_BSO = _matmul_last(x_BSI, tf.cast(kernel_IO, x_BSI.dtype))
        if use_bias:
            y_BSO = tf.nn.bias_add(y_BSO, tf.cast(variable("bias", [num_outputs], zeros()), x_BSI.dtype))
    return y_BSO


def _matmul_last(x_BSI: tf.Tensor, kernel_IO: tf.Tensor) -> tf.Tensor:
    """(..., I) @ (I, O), as one matrix product."""
    leading = [-1 if size is None else size for size in x_BSI.shape.as_list()[:-1]]
    flat = tf.reshape(x_BSI, [-1, x_BSI.shape[-1]])
    return tf.reshape(tf.matmul(flat, kernel_IO), [*leading, kernel_IO.shape[-1]])


def layer_norm(name: str, x_BSH: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Return x with mean 0 and variance 1 over H, times gamma plus beta; computed in float32, returned in x's type."""
    with tf.compat.v1.variable_scope(f"{name}/{name}"):
        gamma_H = variable("gamma", [int(x_BSH.shape[-1])], ones())
        beta_H = variable("beta", [int(x_BSH.shape[-1])], zeros())
        wide_BSH = tf.cast(x_BSH, tf.float32)
        mean_BS1 = tf.reduce_mean(wide_BSH, axis=-1, keepdims=True)
        centred_BSH = wide_BSH - mean_BS1
        variance_BS1 = tf.reduce_mean(tf.square(centred_BSH), axis=-1, keepdims=True)
        y_BSH = centred_BSH * tf.math.rsqrt(variance_BS1 + epsilon) * gamma_H + beta_H
    return tf.cast(y_BSH, x_BSH.dtype)


def rms_norm(name: str, x_BSH: tf.Tensor, epsilon: float) -> tf.Tensor:
    """Return x over its root mean square over H, times gamma; computed in float32, returned in the type of x.

    Zhang and Sennrich, arXiv 1910.07467, Equation 4.
    """
    with tf.compat.v1.variable_scope(f"{name}/{name}"):
        gamma_H = variable("gamma", [int(x_BSH.shape[-1])], ones())
        wide_BSH = tf.cast(x_BSH, tf.float32)
        mean_square_BS1 = tf.reduce_mean(tf.square(wide_BSH), axis=-1, keepdims=True)
        y_BSH = wide_BSH * tf.math.rsqrt(mean_square_BS1 + epsilon) * gamma_H
    return tf.cast(y_BSH, x_BSH.dtype)


def embedding_table(scope: str, vocabulary_size: int, hidden_size: int, initializer: object) -> tf.Variable:
    """Return the variable `<scope>/embedding_weights` (V, H)."""
    with tf.compat.v1.variable_scope(scope):
        return variable("embedding_weights", [vocabulary_size, hidden_size], initializer)


def embed(table_VH: tf.Variable, ids_BS: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Return rows of a table, (B, S, H) in the compute type."""
    return tf.cast(tf.gather(table_VH, ids_BS), dtype)


def tied_logits(x_BSH: tf.Tensor, table_VH: tf.Variable, bias_V: tf.Variable | None = None) -> tf.Tensor:
    """Return x @ table^T (+ bias), (B, S, V) in the type of x: the embedding as output layer."""
    vocabulary_size, hidden_size = table_VH.shape.as_list()
    flat = tf.reshape(x_BSH, [-1, hidden_size])
    logits = tf.matmul(flat, tf.cast(table_VH, x_BSH.dtype), transpose_b=True)
    if bias_V is not None:
        logits = tf.nn.bias_add(logits, tf.cast(bias_V, x_BSH.dtype))
    return tf.reshape(logits, [-1, int(x_BSH.shape[1]), vocabulary_size])


def numbered(name: str, number: int) -> str:
    """Return the name of the n-th layer of a kind, from 0; the first has no number, as in the public Model Zoo."""
    return f"{name}_{number}" if number else name


def dropout(x: tf.Tensor, rate: float, is_training: bool) -> tf.Tensor:
    """Return x; in training, with elements dropped at a rate and the rest scaled up."""
    if not is_training or rate == 0.0:
        return x
    return tf.nn.dropout(x, rate=rate)


def gelu_new(x: tf.Tensor) -> tf.Tensor:
    """Return the tanh approximation of GELU (Hendrycks and Gimpel, arXiv 1606.08415, Section 2)."""
    return tf.nn.gelu(x, approximate=True)


def activation(name: str, x: tf.Tensor) -> tf.Tensor:
    """Return a nonlinearity, by its name in params.yaml."""
    return ACTIVATIONS[name](x)


ACTIVATIONS = {
    "gelu": lambda x: tf.nn.gelu(x, approximate=False),
    "gelu_new": gelu_new,
    "relu": tf.nn.relu,
    "tanh": tf.nn.tanh,
    "silu": tf.nn.silu,
}
