"""A lookup table for words, an encoder and a decoder of custom Keras layers, labels of -1, a tied embedding table."""

import launched_model as common
import numpy as np
import tensorflow as tf
from cerebras.tf.cs_estimator_spec import CSEstimatorSpec

v1 = tf.compat.v1
K = tf.estimator.ModeKeys
SRC = ["the cat sat", "a dog ran home", "birds fly", "the dog sat", "a cat ran", "fish swim deep"] * 8
TGT = [
    "die katze sass",
    "ein hund lief heim",
    "vögel fliegen",
    "der hund sass",
    "eine katze lief",
    "fische schwimmen tief",
] * 8


def tables():
    words = sorted({w for s in SRC + TGT for w in s.split()})
    keys = ["<pad>", "<s>", "</s>", *words]
    values = tf.range(len(keys), dtype=tf.int64)
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(tf.constant(keys), values), 0), len(keys)


def input_fn(params):
    table, _ = tables()
    ds = (
        tf.data.Dataset.zip((tf.data.Dataset.from_tensor_slices(SRC), tf.data.Dataset.from_tensor_slices(TGT)))
        .repeat()
        .shuffle(16, seed=5)
    )

    def ids(s):
        return tf.cast(table.lookup(tf.strings.split(s)), tf.int32)

    ds = ds.map(lambda s, t: (ids(s), ids(t)))
    ds = ds.map(lambda s, t: ({"src": s, "tgt_in": tf.concat([[1], t], 0), "len": tf.size(s)}, tf.concat([t, [2]], 0)))
    L = params["length"]
    ds = ds.padded_batch(
        params["batch"],
        padded_shapes=({"src": [L], "tgt_in": [L], "len": []}, [L]),
        padding_values=({"src": 0, "tgt_in": 0, "len": 0}, -1),
        drop_remainder=True,
    )
    return ds


class Attention(tf.keras.layers.Layer):
    def __init__(self, heads, width, initializer, **kw):
        super().__init__(**kw)
        self.heads, self.width = heads, width
        self.q, self.k, self.v, self.o = [
            tf.keras.layers.Dense(
                width, use_bias=False, kernel_initializer=initializer, name=n, dtype=self.dtype_policy
            )
            for n in "qkvo"
        ]
        self.relative = None

    def build(self, shapes):
        self.scale_weight = self.add_weight(
            "scale", shape=[self.heads], initializer="ones", trainable=True, experimental_autocast=True
        )
        super().build(shapes)

    def call(self, x, memory=None, mask=None):
        memory = x if memory is None else memory

        def split(t):
            return tf.transpose(tf.reshape(t, [tf.shape(t)[0], -1, self.heads, self.width // self.heads]), [0, 2, 1, 3])

        q, k, v = split(self.q(x)), split(self.k(memory)), split(self.v(memory))
        s = tf.einsum("bhqd,bhkd->bhqk", q, k) * tf.cast(self.scale_weight, q.dtype)[None, :, None, None]
        if mask is not None:
            s += tf.cast(mask, s.dtype) * tf.constant(-1e4, s.dtype)
        p = tf.cast(tf.nn.softmax(tf.cast(s, tf.float32)), s.dtype)
        y = tf.transpose(tf.matmul(p, v), [0, 2, 1, 3])
        return self.o(tf.reshape(y, [tf.shape(y)[0], -1, self.width]))


def model_fn(features, labels, mode, params, config):
    _, vocab = None, 3 + len({w for s in SRC + TGT for w in s.split()})
    W = params["width"]
    policy = tf.keras.mixed_precision.experimental.Policy(params["policy"])
    init = tf.keras.initializers.TruncatedNormal(stddev=0.05)
    rel = v1.get_variable("relative", [4, 2 * params["length"]], initializer=v1.initializers.random_uniform(-0.1, 0.1))
    table = v1.get_variable(
        "table", [vocab, W], initializer=v1.truncated_normal_initializer(stddev=0.05), partitioner=None
    )
    pos = tf.constant(np.sin(np.arange(params["length"])[:, None] / 10.0 ** (np.arange(W) / W)).astype(np.float32))

    def embed(ids):
        x = tf.nn.embedding_lookup(table, ids) * W**0.5 + pos
        return tf.cast(x, policy.compute_dtype)

    def drop(x):
        return tf.nn.dropout(x, rate=0.1) if mode == K.TRAIN else x

    mask = tf.cast(tf.equal(features["src"], 0), tf.float32)[:, None, None, :]
    causal = 1 - tf.linalg.band_part(tf.ones([params["length"]] * 2), -1, 0)
    x = drop(embed(features["src"]))
    for i in range(2):
        with v1.variable_scope(f"enc{i}"):
            x = tf.keras.layers.LayerNormalization(dtype=policy)(
                x + drop(Attention(4, W, init, dtype=policy)(x, mask=mask))
            )
            h = tf.keras.layers.Dense(2 * W, "gelu" if i else tf.nn.relu, dtype=policy, kernel_initializer=init)(x)
            x = tf.keras.layers.LayerNormalization(dtype=policy)(
                x + tf.keras.layers.Dense(W, dtype=policy, kernel_initializer=init)(h)
            )
    y = drop(embed(features["tgt_in"]))
    for i in range(2):
        y = tf.keras.layers.LayerNormalization(dtype=policy)(
            y + Attention(4, W, init, dtype=policy, name=f"self{i}")(y, mask=causal)
        )
        y = tf.keras.layers.LayerNormalization(dtype=policy)(
            y + Attention(4, W, init, dtype=policy, name=f"cross{i}")(y, memory=x, mask=mask)
        )
    logits = tf.matmul(tf.cast(y, tf.float32), table, transpose_b=True) + tf.reduce_sum(rel) * 0.01
    tokens = tf.argmax(logits, -1, output_type=tf.int32)
    if mode == K.PREDICT:
        return CSEstimatorSpec(mode, predictions={"tokens": tokens, "len": features["len"]})
    per = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    w = tf.cast(labels >= 0, tf.float32)
    loss = tf.math.divide_no_nan(tf.reduce_sum(per * w), tf.reduce_sum(w))
    if mode == K.EVAL:
        safe = tf.maximum(labels, 0)
        m = tf.keras.metrics.Mean(name="m")
        m.update_state(per, sample_weight=w)
        return CSEstimatorSpec(
            mode,
            loss=loss,
            eval_metric_ops={
                "acc": v1.metrics.accuracy(safe, tokens, w),
                "keras_mean": m,
                "in_top": v1.metrics.mean(
                    tf.cast(tf.nn.in_top_k(tf.reshape(safe, [-1]), tf.reshape(logits, [-1, vocab]), 3), tf.float32)
                ),
            },
        )
    step = v1.train.get_or_create_global_step()
    rate = W**-0.5 * tf.minimum(tf.math.rsqrt(tf.cast(step + 1, tf.float32)), tf.cast(step + 1, tf.float32) * 0.01)
    opt = v1.train.AdamOptimizer(rate, 0.9, 0.98, 1e-6)
    grads = opt.compute_gradients(loss)
    clipped, norm = tf.clip_by_global_norm([g for g, _ in grads], 1.0)
    v1.summary.scalar("norm", norm)
    op = opt.apply_gradients([(g, v) for g, (_, v) in zip(clipped, grads, strict=False)], step)
    hooks = [v1.train.LoggingTensorHook({"norm": norm, "lr": rate}, every_n_iter=1)]
    return CSEstimatorSpec(
        mode,
        loss=loss,
        train_op=op,
        training_hooks=hooks,
        scaffold=v1.train.Scaffold(init_fn=lambda scaffold, session: print("INIT FN")),
    )


def recv():
    t = {
        "src": v1.placeholder(tf.int32, [1, 8]),
        "tgt_in": v1.placeholder(tf.int32, [1, 8]),
        "len": v1.placeholder(tf.int32, [1]),
    }
    return tf.estimator.export.ServingInputReceiver(t, t)


if __name__ == "__main__":
    common.main(
        model_fn,
        input_fn,
        input_fn,
        {"length": 8, "batch": 4, "width": 32},
        predict_fn=input_fn,
        exporter=tf.estimator.FinalExporter("final", recv),
    )
