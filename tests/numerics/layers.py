"""The layers of generated networks: each takes and returns one vector for each token."""

# B batch, S sequence, T tokens (B x S), H hidden, V vocabulary

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

v1 = tf.compat.v1
HIDDEN = 16
SQUARE = (HIDDEN, HIDDEN)


@dataclass(frozen=True)
class Layer:
    """One layer.

    Attributes:
        kind: Name of a function in KINDS.
        shared: Whether it reuses the first shared weight of its shape instead of making a new one.
        activation: Name of a function in tf.nn.
    """

    kind: str
    shared: bool
    activation: str


class Weights:
    """Variables of a network, some of them shared.

    Args:
        vocabulary: Number of different tokens.
        sequence: Tokens of a sample.
    """

    def __init__(self, vocabulary: int, sequence: int) -> None:
        self.vocabulary = vocabulary
        self.sequence = sequence
        self._first: dict[tuple[int, ...], Any] = {}
        self._count = 0

    def __call__(self, shape: tuple[int, ...], layer: Layer) -> Any:
        """Return a weight of a shape; the first one of the shape if the layer shares it."""
        if layer.shared and shape in self._first:
            return self._first[shape]
        made = self._variable(shape, v1.random_normal_initializer(stddev=0.2))
        return self._first.setdefault(shape, made) if layer.shared else made

    def table(self) -> Any:
        """Return a new table of the vocabulary (V, H)."""
        return self._variable((self.vocabulary, HIDDEN), v1.random_normal_initializer(stddev=0.2))

    def parts_of_table(self) -> Any:
        """Return a new table of the vocabulary in three variables."""
        self._count += 1
        return v1.get_variable(
            f"w{self._count}", (self.vocabulary, HIDDEN), partitioner=v1.fixed_size_partitioner(3), initializer=None
        )

    def regularized(self) -> Any:
        """Return a new square weight with a loss of its own."""
        return self._variable(SQUARE, None, regularizer=lambda weight: 1e-3 * tf.nn.l2_loss(weight))

    def untrained(self, shape: tuple[int, ...], value: float = 0.0) -> Any:
        """Return a variable that no gradient changes."""
        return self._variable(shape, v1.constant_initializer(value), trainable=False)

    def _variable(self, shape: tuple[int, ...], initializer: Any, **options: Any) -> Any:
        self._count += 1
        return v1.get_variable(f"w{self._count}", shape, initializer=initializer, **options)


def _act(layer: Layer, x: Any) -> Any:
    return getattr(tf.nn, layer.activation)(x)


def _samples(x: Any, weights: Weights) -> Any:
    return tf.reshape(x, [-1, weights.sequence, HIDDEN])


def _pictures(x: Any, weights: Weights) -> Any:
    return tf.reshape(x, [-1, weights.sequence, 1, HIDDEN])


def _tokens(x: Any) -> Any:
    return tf.reshape(x, [-1, HIDDEN])


def _after_step(op: Any) -> None:
    v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, op)


def dense(x: Any, ids: Any, layer: Layer, weights: Weights) -> Any:
    return _act(layer, tf.matmul(x, weights(SQUARE, layer)) + weights((HIDDEN,), layer))


def transposed(x: Any, ids: Any, layer: Layer, weights: Weights) -> Any:
    return x + _act(layer, tf.matmul(x, weights(SQUARE, layer), transpose_b=True))


def branches(x: Any, ids: Any, layer: Layer, weights: Weights) -> Any:
    left, right = (tf.matmul(x, weights(SQUARE, layer)) for _ in range(2))
    return x + _act(layer, left) * tf.sigmoid(right)


def moments(x: Any, ids: Any, layer: Layer, weights: Weights) -> Any:
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + 1e-6) * (1.0 + weights((HIDDEN,), layer))


def concat(x: Any, ids: Any, layer: Layer, weights: Weights) -> Any:
    return tf.matmul(tf.concat([x, _act(layer, x)], -1), weights((2 * HIDDEN, HIDDEN), layer))


def slices(x: Any, ids: Any, layer: Layer, weights: Weights) -> Any:
    left, right = x[:, : HIDDEN // 2], x[:, HIDDEN // 2 :]
    rows = weights((4 * HIDDEN, HIDDEN), layer)[3 : 3 + HIDDEN]
    return x + _act(layer, tf.matmul(tf.concat([right * left, left], -1), rows))


def gather(x: Any, ids: Any, layer: Layer, weights: Weights) -> Any:
    table = weights((weights.vocabulary, HIDDEN), layer)
    return x + _act(
        layer, tf.nn.embedding_lookup(table, ids) * tf.nn.embedding_lookup(table, (ids + 1) % weights.vocabulary)
    )


def gather_parts(x: Any, ids: Any, layer: Layer, weights: Weights) -> Any:
    table = weights.parts_of_table()
    return x + _act(layer, v1.nn.embedding_lookup(table, ids, partition_strategy="div"))


def gather_unique(x: Any, ids: Any, layer: Layer, weights: Weights) -> Any:
    rows, places = tf.unique(ids)
    return x + tf.gather(_act(layer, tf.gather(weights((weights.vocabulary, HIDDEN), layer), rows)), places)


def many_uses(x: Any, ids: Any, layer: Layer, weights: Weights) -> Any:
    y = tf.matmul(x, weights(SQUARE, layer))
    return tf.add_n([x, _act(layer, y), tf.sin(y), 0.5 * tf.cos(y), y * tf.sigmoid(x)])


def batch_norm(x: Any, ids: Any, layer: Layer, weights: Weights) -> Any:
    mean, variance = tf.nn.moments(x, [0])
    for moving, value in ((weights.untrained((HIDDEN,)), mean), (weights.untrained((HIDDEN,), 1.0), variance)):
        _after_step(moving.assign(0.9 * moving + 0.1 * tf.stop_gradient(value)))
    return tf.nn.batch_normalization(x, mean, variance, None, 1.0 + weights((HIDDEN,), layer), 1e-3)


def fused_batch_norm(x: Any, ids: Any, layer: Layer, weights: Weights) -> Any:
    scale, offset = 1.0 + weights((HIDDEN,), layer), weights.untrained((HIDDEN,))
    y, mean, variance = v1.nn.fused_batch_norm(_pictures(x, weights), scale, offset)
    moving = weights.untrained((2, HIDDEN))
    _after_step(moving.assign_sub(0.1 * (moving - tf.stop_gradient(tf.stack([mean, variance])))))
    return _tokens(y)


def counted(x: Any, ids: Any, layer: Layer, weights: Weights) -> Any:
    counter = weights.untrained(())
    _after_step(counter.assign_add(1.0))
    return x * (1.0 + 0.01 * counter)


def seen_rows(x: Any, ids: Any, layer: Layer, weights: Weights) -> Any:
    seen = weights.untrained((weights.vocabulary, HIDDEN))
    _after_step(seen.scatter_add(tf.IndexedSlices(tf.stop_gradient(x), ids)))
    return x + 0.01 * tf.nn.embedding_lookup(seen, ids)


def written_slice(x: Any, ids: Any, layer: Layer, weights: Weights) -> Any:
    memory = weights.untrained((x.shape[0] + 8, HIDDEN))
    read = memory[: x.shape[0]]
    with tf.control_dependencies([read]):
        _after_step(memory[8:].assign(tf.stop_gradient(0.5 * x)))
    return x + _act(layer, read)


def convolution(x: Any, ids: Any, layer: Layer, weights: Weights) -> Any:
    return x + _act(
        layer, _tokens(tf.nn.conv2d(_pictures(x, weights), weights((3, 1, HIDDEN, HIDDEN), layer), 1, "SAME"))
    )


def biased_convolution(x: Any, ids: Any, layer: Layer, weights: Weights) -> Any:
    """oneDNN runs the convolution and the bias as one op."""
    kernel, bias = weights((3, 1, HIDDEN, HIDDEN), layer), weights((HIDDEN,), layer)
    return x + _act(layer, _tokens(tf.nn.bias_add(tf.nn.conv2d(_pictures(x, weights), kernel, 1, "SAME"), bias)))


def padded_convolution(x: Any, ids: Any, layer: Layer, weights: Weights) -> Any:
    """oneDNN runs the padding and the convolution as one op."""
    padded = tf.pad(_pictures(x, weights), [[0, 0], [1, 1], [0, 0], [0, 0]])
    return x + _act(layer, _tokens(tf.nn.conv2d(padded, weights((3, 1, HIDDEN, HIDDEN), layer), 1, "VALID")))


def empty(x: Any, ids: Any, layer: Layer, weights: Weights) -> Any:
    """The gradient of what is joined has no elements."""
    kernel = weights(SQUARE, layer)
    return x + tf.matmul(tf.concat([_act(layer, tf.matmul(x, kernel)), tf.zeros([x.shape[0], 0])], 1), kernel)


def depthwise(x: Any, ids: Any, layer: Layer, weights: Weights) -> Any:
    kernel = weights((3, 1, HIDDEN, 1), layer)
    return x + _act(layer, _tokens(tf.nn.depthwise_conv2d(_pictures(x, weights), kernel, [1, 1, 1, 1], "SAME")))


def pooled(x: Any, ids: Any, layer: Layer, weights: Weights) -> Any:
    most = tf.nn.max_pool2d(_pictures(x, weights), [3, 1], 1, "SAME")
    return _tokens(most + tf.nn.avg_pool2d(_pictures(_act(layer, x), weights), [2, 1], 1, "SAME"))


def attention(x: Any, ids: Any, layer: Layer, weights: Weights) -> Any:
    x_BSH = _samples(x, weights)
    query, key, value = (tf.einsum("bsh,hk->bsk", x_BSH, weights(SQUARE, layer)) for _ in range(3))
    scores = tf.nn.softmax(tf.einsum("bqh,bkh->bqk", query, key) / HIDDEN**0.5)
    return x + _tokens(tf.matmul(scores, value))


def recurrent(x: Any, ids: Any, layer: Layer, weights: Weights) -> Any:
    kernel, x_SBH = weights(SQUARE, layer), tf.transpose(_samples(x, weights), [1, 0, 2])
    states = tf.scan(lambda state, one: _act(layer, one + tf.matmul(state, kernel)), x_SBH, tf.zeros_like(x_SBH[0]))
    return _tokens(tf.transpose(states, [1, 0, 2]))


def looped(x: Any, ids: Any, layer: Layer, weights: Weights) -> Any:
    kernel = weights(SQUARE, layer)
    _, y = tf.while_loop(
        lambda number, _: number < 3, lambda number, y: (number + 1, y + tf.tanh(tf.matmul(y, kernel))), (0, x)
    )
    return y


def mapped(x: Any, ids: Any, layer: Layer, weights: Weights) -> Any:
    kernel = weights(SQUARE, layer)
    x_BSH = _samples(x, weights)
    return x + _tokens(tf.map_fn(lambda one: _act(layer, tf.matmul(one, kernel)), x_BSH))


def conditional(x: Any, ids: Any, layer: Layer, weights: Weights) -> Any:
    first, second = weights(SQUARE, layer), weights((HIDDEN,), layer)
    return x + tf.cond(ids[0] > ids[1], lambda: _act(layer, tf.matmul(x, first)), lambda: x * second)


def called(x: Any, ids: Any, layer: Layer, weights: Weights) -> Any:
    kernel = weights(SQUARE, layer)

    @tf.function
    def function(y: Any) -> Any:
        return y + _act(layer, tf.matmul(y, kernel))

    return function(function(x))


def own_gradient(x: Any, ids: Any, layer: Layer, weights: Weights) -> Any:
    @tf.custom_gradient
    def function(y: Any) -> Any:
        return tf.identity(y), lambda gradient: tf.clip_by_norm(gradient, 0.05)

    return x + function(_act(layer, tf.matmul(x, weights(SQUARE, layer))))


def computed_again(x: Any, ids: Any, layer: Layer, weights: Weights) -> Any:
    kernel = weights(SQUARE, layer)
    return x + tf.recompute_grad(lambda y: _act(layer, tf.matmul(y, kernel)))(x)


def gradient(x: Any, ids: Any, layer: Layer, weights: Weights) -> Any:
    energy = tf.reduce_sum(tf.tanh(tf.matmul(x, weights(SQUARE, layer))) ** 2)
    (slope,) = tf.gradients(energy, x)
    return x - 0.1 * slope


def segments(x: Any, ids: Any, layer: Layer, weights: Weights) -> Any:
    sums = tf.math.unsorted_segment_sum(x, ids % 7, 7)
    means = tf.math.segment_mean(_act(layer, x), tf.sort(ids % 5))
    return x + tf.gather(sums, ids % 7) * 0.1 + tf.gather(means, tf.zeros_like(ids))


def ordered(x: Any, ids: Any, layer: Layer, weights: Weights) -> Any:
    most, places = tf.math.top_k(x, HIDDEN // 2)
    return x + tf.matmul(tf.concat([most, tf.gather(x, places, batch_dims=1)], -1), weights(SQUARE, layer))


def moved(x: Any, ids: Any, layer: Layer, weights: Weights) -> Any:
    rolled = tf.roll(tf.reverse(x, [0]), 3, 0) + tf.cumsum(x, 1, exclusive=True) * 0.1
    return _act(layer, rolled) + tf.pad(x[1:], [[1, 0], [0, 0]], "CONSTANT")


def scattered(x: Any, ids: Any, layer: Layer, weights: Weights) -> Any:
    rows = tf.tensor_scatter_nd_add(x, ids[:5, None] % x.shape[0], x[5:10])
    return rows + tf.scatter_nd(ids[:, None] % x.shape[0], _act(layer, x), [x.shape[0], HIDDEN])


def masked(x: Any, ids: Any, layer: Layer, weights: Weights) -> Any:
    kept = tf.boolean_mask(x, ids % 3 > 0)
    return x + tf.reduce_mean(_act(layer, tf.matmul(kept, weights(SQUARE, layer))), 0)


def sparse_product(x: Any, ids: Any, layer: Layer, weights: Weights) -> Any:
    places = tf.stack([tf.range(x.shape[0], dtype=tf.int64), tf.cast(ids, tf.int64)], 1)
    one_hot = tf.SparseTensor(places, tf.ones([x.shape[0]]), [x.shape[0], weights.vocabulary])
    return x + tf.sparse.sparse_dense_matmul(one_hot, weights((weights.vocabulary, HIDDEN), layer))


def combined(x: Any, ids: Any, layer: Layer, weights: Weights) -> Any:
    places = tf.stack([tf.repeat(tf.range(x.shape[0] // 2), 2), tf.tile([0, 1], [x.shape[0] // 2])], 1)
    bags = tf.SparseTensor(tf.cast(places, tf.int64), ids, [x.shape[0] // 2, 2])
    rows = tf.nn.embedding_lookup_sparse(weights((weights.vocabulary, HIDDEN), layer), bags, None, combiner="sqrtn")
    return x + tf.repeat(rows, 2, 0)


def quantized(x: Any, ids: Any, layer: Layer, weights: Weights) -> Any:
    kernel = tf.quantization.fake_quant_with_min_max_args(weights(SQUARE, layer), -1.0, 1.0)
    return x + _act(layer, tf.matmul(x, kernel))


def halves(x: Any, ids: Any, layer: Layer, weights: Weights) -> Any:
    kernel = tf.cast(weights(SQUARE, layer), tf.bfloat16)
    return x + tf.cast(_act(layer, tf.matmul(tf.cast(x, tf.bfloat16), kernel)), tf.float32)


def regularized(x: Any, ids: Any, layer: Layer, weights: Weights) -> Any:
    return x + _act(layer, tf.matmul(x, weights.regularized()))


def dropped(x: Any, ids: Any, layer: Layer, weights: Weights) -> Any:
    return v1.nn.dropout(_act(layer, tf.matmul(x, weights(SQUARE, layer))), rate=0.3) + x


def noisy(x: Any, ids: Any, layer: Layer, weights: Weights) -> Any:
    kernel = weights(SQUARE, layer)
    return x + tf.map_fn(lambda row: row + 0.1 * tf.random.normal([HIDDEN]), tf.matmul(x, kernel))


RANDOM_KINDS = {"dropped", "noisy"}
LOOPS = {"recurrent", "looped", "mapped", "noisy"}
KINDS: dict[str, Callable[[Any, Any, Layer, Weights], Any]] = {
    kind.__name__: kind
    for kind in (
        *(dense, transposed, branches, moments, concat, slices, gather, gather_parts, gather_unique, many_uses),
        *(batch_norm, fused_batch_norm, counted, seen_rows, written_slice, convolution),
        *(
            biased_convolution,
            padded_convolution,
            empty,
            depthwise,
            pooled,
            attention,
            recurrent,
            looped,
            mapped,
            conditional,
            called,
            own_gradient,
        ),
        *(computed_again, gradient, segments, ordered, moved, scattered, masked, sparse_product, combined),
        *(quantized, halves, regularized, dropped, noisy),
    )
}
