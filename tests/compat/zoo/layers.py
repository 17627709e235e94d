"""Layers that wrap those of Keras 2 and assign their dtypes themselves, as model code for TensorFlow 2.2 did."""

import numpy as np
import tensorflow as tf
from tensorflow.keras.layers import Activation, Add, Dense, Dropout, LayerNormalization, Reshape, Softmax
from tensorflow.python.keras import activations, constraints, initializers, regularizers

try:
    from cerebras.tf.tf_helper import boundary_cast, summary_layer
except Exception:
    try:
        from cerebras_tensorflow.summary import boundary_cast, summary_layer
    except Exception:

        def boundary_cast(x, name=None, back_cast=True):
            return x

        def summary_layer(x):
            return x


def initializer_of(spec):
    """An initializer by name or by (name, arguments); seeds are dropped."""
    if isinstance(spec, str):
        spec = {"name": spec}
    name = spec["name"].lower()
    if name == "truncated_normal":
        return tf.keras.initializers.TruncatedNormal(mean=spec.get("mean", 0.0), stddev=spec.get("stddev", 0.05))
    if name == "variance_scaling":
        return tf.keras.initializers.VarianceScaling(
            scale=spec.get("scale", 1.0), mode=spec.get("mode", "fan_in"), distribution=spec.get("distribution")
        )
    kinds = {
        "constant": tf.keras.initializers.Constant,
        "glorot_normal": tf.keras.initializers.GlorotNormal,
        "glorot_uniform": tf.keras.initializers.GlorotUniform,
        "random_normal": tf.keras.initializers.RandomNormal,
        "random_uniform": tf.keras.initializers.RandomUniform,
    }
    return kinds[name]()


class BaseLayer(tf.keras.layers.Layer):
    def __init__(self, boundary_casting=False, tf_summary=False, **kwargs):
        super().__init__(**kwargs)
        policy = self._dtype_policy
        self.dtype_policy = policy
        self.variable_dtype = policy.variable_dtype
        self.compute_dtype = policy.compute_dtype
        self.boundary_casting = boundary_casting
        self.tf_summary = tf_summary

    def finished(self, output):
        if self.boundary_casting:
            output = boundary_cast(output, name="out", back_cast=False)
        if self.tf_summary:
            output = summary_layer(output)
        return output


class DenseLayer(BaseLayer):
    def __init__(self, units, activation=None, use_bias=True, kernel_initializer="glorot_uniform", **kwargs):
        super().__init__(**kwargs)
        self.layer = Dense(
            units,
            activation=None,
            use_bias=use_bias,
            kernel_initializer=kernel_initializer,
            bias_initializer="zeros",
            kernel_regularizer=None,
            bias_regularizer=None,
            activity_regularizer=None,
            kernel_constraint=None,
            bias_constraint=None,
            name=self.name,
            dtype=self.dtype_policy,
        )
        self.activation = ActivationLayer(activation, dtype=self.dtype_policy) if activation else None

    def call(self, inputs, **kwargs):
        if self.boundary_casting:
            inputs = boundary_cast(inputs)
        output = self.layer(inputs)
        return self.finished(self.activation(output) if self.activation else output)


class ActivationLayer(BaseLayer):
    def __init__(self, activation, **kwargs):
        super().__init__(**kwargs)
        function = self.gelu if activation == "gelu" else activation
        self.layer = Activation(function, dtype=self.dtype_policy, name=self.name)

    @staticmethod
    def gelu(x):
        return 0.5 * x * (1.0 + tf.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * tf.pow(x, 3))))

    def call(self, inputs, **kwargs):
        return self.finished(self.layer(inputs))


class LayerNormalizationLayer(BaseLayer):
    def __init__(self, epsilon=1e-5, **kwargs):
        super().__init__(**kwargs)
        self.layer = LayerNormalization(
            axis=-1, epsilon=epsilon, center=True, scale=True, name=self.name, dtype=self.dtype_policy
        )

    def call(self, inputs, **kwargs):
        return self.finished(self.layer(inputs))


class DropoutLayer(BaseLayer):
    def __init__(self, rate, seed=None, **kwargs):
        super().__init__(**kwargs)
        self.layer = Dropout(rate, noise_shape=None, seed=seed, name=self.name, dtype=self.dtype_policy)

    def call(self, inputs, training=True, **kwargs):
        return self.finished(self.layer(inputs, training=training))


class AddLayer(BaseLayer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.layer = Add(name=self.name, dtype=self.dtype_policy)

    def call(self, inputs, **kwargs):
        return self.finished(self.layer(inputs))


class SoftmaxLayer(BaseLayer):
    def __init__(self, axis=-1, **kwargs):
        super().__init__(**kwargs)
        self.layer = Softmax(axis=axis, name=self.name, dtype=self.dtype_policy)

    def call(self, inputs, **kwargs):
        return self.finished(self.layer(inputs))


class EmbeddingLayer(BaseLayer):
    def __init__(self, input_dim, output_dim, embeddings_initializer="uniform", use_bias=False, **kwargs):
        super().__init__(**kwargs)
        self.input_dim, self.output_dim, self.use_bias = input_dim, output_dim, use_bias
        self.initializer = initializers.get(embeddings_initializer)

    def build(self, input_shape):
        self.embedding_weights = self.add_weight(
            name="embedding_weights",
            shape=[self.input_dim, self.output_dim],
            dtype=self.variable_dtype,
            initializer=self.initializer,
            trainable=True,
            experimental_autocast=False,
        )
        self.built = True

    def call(self, inputs, **kwargs):
        output = tf.gather(tf.cast(self.embedding_weights, self.compute_dtype), inputs)
        return self.finished(output)

    def embedding_table(self):
        return self.embedding_weights


class PositionEmbeddingLayer(BaseLayer):
    def __init__(self, max_position_embeddings, embeddings_initializer="uniform", is_fixed=False, **kwargs):
        super().__init__(**kwargs)
        self.max_positions, self.is_fixed = max_position_embeddings, is_fixed
        self.initializer = embeddings_initializer

    def build(self, input_shape):
        width = int(input_shape[-1])
        if self.is_fixed:
            positions = np.arange(self.max_positions)[:, None] / 10000 ** (np.arange(width)[None, :] / width)
            table = np.concatenate([np.sin(positions[:, 0::2]), np.cos(positions[:, 1::2])], axis=1)
            self.table = self.add_weight(
                name="fixed_position_embedding",
                shape=table.shape,
                dtype=self.variable_dtype,
                initializer=tf.keras.initializers.Constant(table),
                trainable=False,
            )
        else:
            self.table = self.add_weight(
                name="position_embedding_weights",
                shape=[self.max_positions, width],
                dtype=self.variable_dtype,
                initializer=self.initializer,
                trainable=True,
            )
        self.built = True

    def call(self, inputs, **kwargs):
        length = inputs.get_shape().as_list()[1]
        return self.finished(inputs + tf.cast(self.table[:length], inputs.dtype))


class SharedWeightsDenseLayer(BaseLayer):
    """A dense layer on a given weight, such as an embedding table."""

    def __init__(self, units, activation=None, use_bias=True, bias_initializer="zeros", **kwargs):
        super().__init__(**kwargs)
        self.units, self.use_bias = units, use_bias
        self.activation = activations.get(activation)
        self.bias_initializer = initializers.get(bias_initializer)
        self.bias_regularizer = regularizers.get(None)
        self.bias_constraint = constraints.get(None)

    def build(self, input_shape):
        if self.use_bias:
            self.bias = self.add_weight(
                "bias",
                shape=[self.units],
                initializer=self.bias_initializer,
                regularizer=self.bias_regularizer,
                constraint=self.bias_constraint,
                dtype=self.variable_dtype,
                trainable=True,
            )
        self.built = True

    def call(self, inputs, kernel, transpose_kernel=True, **kwargs):
        width = inputs.get_shape().as_list()
        output = tf.matmul(
            tf.reshape(inputs, [-1, width[-1]]), tf.cast(kernel, inputs.dtype), transpose_b=transpose_kernel
        )
        output = tf.reshape(output, [*width[:-1], self.units])
        if self.use_bias:
            output = tf.nn.bias_add(output, tf.cast(self.bias, output.dtype))
        return self.finished(self.activation(output))


class AttentionLayer(BaseLayer):
    def __init__(
        self, hidden_size, num_heads, initializer, use_bias=True, dropout_rate=0.0, rotary_dim=0, projected=0, **kwargs
    ):
        super().__init__(**kwargs)
        self.hidden_size, self.num_heads, self.rotary_dim = hidden_size, num_heads, rotary_dim
        options = {"use_bias": use_bias, "kernel_initializer": initializer, "dtype": self.dtype_policy}
        self.q_dense_layer = DenseLayer(hidden_size, name="q_projection", **options)
        self.k_dense_layer = DenseLayer(hidden_size, name="k_projection", **options)
        self.v_dense_layer = DenseLayer(hidden_size, name="v_projection", **options)
        self.output_dense_layer = DenseLayer(hidden_size, name="output_transform", **options)
        self.projection = None
        if projected:
            self.projection = DenseLayer(
                projected, use_bias=False, kernel_initializer=initializer, name="E_projection", dtype=self.dtype_policy
            )
        self.softmax_layer = SoftmaxLayer(dtype="float32")
        self.dropout_layer = DropoutLayer(dropout_rate, dtype=self.dtype_policy)

    def heads(self, x):
        shape = x.get_shape().as_list()
        x = Reshape([shape[1], self.num_heads, shape[2] // self.num_heads])(x)
        return tf.transpose(x, perm=[0, 2, 1, 3])

    def rotate(self, x):
        length, width = x.get_shape().as_list()[2], self.rotary_dim
        frequency = 1.0 / 10000 ** (np.arange(0, width, 2) / width)
        angles = np.repeat(np.arange(length)[:, None] * frequency[None, :], 2, axis=1)
        turned, rest = tf.split(x, [width, x.get_shape().as_list()[3] - width], axis=3)
        other = tf.reshape(tf.stack([-turned[..., 1::2], turned[..., ::2]], axis=-1), tf.shape(turned))
        turned = turned * tf.cast(np.cos(angles), x.dtype) + other * tf.cast(np.sin(angles), x.dtype)
        return tf.concat([turned, rest], axis=3)

    def call(self, q, v, mask=None, position_bias=None, training=True, **kwargs):
        q, k, v = self.q_dense_layer(q), self.k_dense_layer(v), self.v_dense_layer(v)
        if self.projection is not None:
            k, v = (tf.transpose(self.projection(tf.transpose(t, [0, 2, 1])), [0, 2, 1]) for t in (k, v))
        q, k, v = self.heads(q), self.heads(k), self.heads(v)
        if self.rotary_dim:
            q, k = self.rotate(q), self.rotate(k)
        logits = tf.matmul(q * tf.cast(q.get_shape().as_list()[-1] ** -0.5, q.dtype), k, transpose_b=True)
        if position_bias is not None:
            logits = logits + tf.cast(position_bias, logits.dtype)
        if mask is not None:
            logits = logits + tf.cast(mask, logits.dtype)
        weights = tf.cast(self.softmax_layer(tf.cast(logits, tf.float32)), v.dtype)
        context = tf.matmul(self.dropout_layer(weights, training=training), v)
        context = tf.transpose(context, perm=[0, 2, 1, 3])
        shape = context.get_shape().as_list()
        context = tf.reshape(context, [shape[0] or -1, shape[1], self.hidden_size])
        return self.finished(self.output_dense_layer(context))


class FeedForwardNetwork(BaseLayer):
    def __init__(self, filter_size, hidden_size, activation, initializer, dropout_rate=0.0, **kwargs):
        super().__init__(**kwargs)
        self.first = DenseLayer(filter_size, activation, kernel_initializer=initializer, dtype=self.dtype_policy)
        self.dropout = DropoutLayer(dropout_rate, dtype=self.dtype_policy)
        self.second = DenseLayer(hidden_size, kernel_initializer=initializer, dtype=self.dtype_policy)

    def call(self, inputs, training=True, **kwargs):
        return self.finished(self.second(self.dropout(self.first(inputs), training=training)))


class CrossEntropyFromLogitsLayer(BaseLayer):
    def call(self, labels, logits, **kwargs):
        labels = tf.cast(labels, tf.int32)
        loss = tf.compat.v1.nn.sparse_softmax_cross_entropy_with_logits(
            labels=labels, logits=logits, name="softmax_cross_entropy"
        )
        return self.finished(tf.cast(loss, logits.dtype))
