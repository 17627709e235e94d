"""Convolutions, batch normalization, losses in collections, a moving average, loss scaling, metrics on the host."""

import launched_model as common
import numpy as np
import tensorflow as tf
from cerebras.tf.cs_estimator_spec import CSEstimatorSpec

v1 = tf.compat.v1
K = tf.estimator.ModeKeys


def generator():
    rng = np.random.RandomState(0)
    while True:
        image = rng.rand(20, 20, 1).astype(np.float32)
        yield image, (image > 0.5).astype(np.float32)


def input_fn(params, mode, input_context=None):
    ds = tf.data.Dataset.from_generator(
        generator, (tf.float32, tf.float32), (tf.TensorShape([20, 20, 1]), tf.TensorShape([20, 20, 1]))
    )

    def augment(x, y):
        both = tf.concat([x, y], -1)
        both = tf.image.random_flip_left_right(both, seed=3)
        both = tf.image.random_crop(both, [16, 16, 2], seed=4)
        x, y = tf.split(both, 2, axis=-1)
        return tf.image.per_image_standardization(x), y

    def crop(x, y):
        return tf.image.resize_with_crop_or_pad(x, 16, 16), tf.image.resize_with_crop_or_pad(y, 16, 16)

    ds = ds.map(augment if mode == K.TRAIN else crop, num_parallel_calls=None)
    options = tf.data.Options()
    options.experimental_deterministic = True
    return ds.with_options(options).batch(4, drop_remainder=True).prefetch(tf.data.experimental.AUTOTUNE)


def train_fn(params):
    return input_fn(params, K.TRAIN)


def eval_fn(params):
    return input_fn(params, K.EVAL)


def block(x, filters, name, training, policy):
    with tf.name_scope(name):
        for i in range(2):
            x = tf.keras.layers.Conv2D(
                filters,
                3,
                (1, 1),
                "same",
                None,
                (1, 1),
                None,
                False,
                kernel_initializer="he_normal",
                kernel_regularizer=tf.keras.regularizers.l2(1e-4),
                dtype=policy,
                name=f"{name}_conv{i}",
            )(x)
            x = (
                v1.layers.batch_normalization(x, training=training, name=f"{name}_bn{i}", momentum=0.9, fused=True)
                if i == 0
                else tf.keras.layers.BatchNormalization(momentum=0.9, name=f"{name}_bn{i}")(x, training=training)
            )
            x = tf.keras.layers.LeakyReLU(0.1)(x)
    return x


def model_fn(features, labels, mode, params, config):
    training = mode == K.TRAIN
    policy = tf.keras.mixed_precision.experimental.Policy(params["policy"], loss_scale=None)
    tf.keras.mixed_precision.experimental.set_policy(policy)
    x1 = block(features, 4, "down1", training, policy)
    x = tf.keras.layers.MaxPool2D(2)(x1)
    x = block(x, 8, "bottom", training, policy)
    x = tf.keras.layers.SpatialDropout2D(0.1)(x, training=training)
    x = tf.keras.layers.Conv2DTranspose(4, 2, 2, "same", dtype=policy)(x)
    x = tf.keras.layers.Concatenate()([tf.cast(x1, x.dtype), x])
    x = block(x, 4, "up1", training, policy)
    logits = v1.layers.conv2d(
        tf.cast(x, tf.float32), 1, 1, name="logits", kernel_regularizer=tf.keras.regularizers.l1(1e-5)
    )
    prob = tf.sigmoid(logits)
    tf.keras.mixed_precision.experimental.set_policy("float32")
    if mode == K.PREDICT:
        return CSEstimatorSpec(mode, predictions={"prob": prob})
    v1.losses.sigmoid_cross_entropy(labels, logits)
    dice = 1 - 2 * tf.reduce_sum(prob * labels) / (tf.reduce_sum(prob + labels) + 1e-6)
    v1.losses.add_loss(0.5 * dice)
    loss = v1.losses.get_total_loss()
    train_op = host_call = None
    if mode == K.TRAIN:
        v1.summary.image("input", features[:1], max_outputs=1)
        v1.summary.histogram("logits", logits)
        step = v1.train.get_or_create_global_step()
        rate = v1.train.piecewise_constant(step, [2, 4], [0.01, 0.005, 0.001])
        opt = v1.train.MomentumOptimizer(rate, 0.9, use_nesterov=True)
        if params.get("scale"):
            opt = v1.train.experimental.MixedPrecisionLossScaleOptimizer(
                opt, v1.train.experimental.DynamicLossScale(initial_loss_scale=2.0**10, increment_period=2)
            )
        ema = v1.train.ExponentialMovingAverage(0.9, step)
        with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
            op = opt.minimize(loss, step)
        with tf.control_dependencies([op]):
            train_op = ema.apply(v1.trainable_variables())
    else:

        def metrics(labels, prob):
            pred = tf.cast(prob > 0.5, tf.int32)
            return {
                "eval/miou": v1.metrics.mean_iou(tf.cast(labels, tf.int32), pred, 2),
                "eval/acc": v1.metrics.accuracy(tf.cast(labels, tf.int32), pred),
                "eval/auc": v1.metrics.auc(labels, prob, num_thresholds=20),
                "eval/pr": v1.metrics.precision(labels, pred),
            }

        host_call = (metrics, [labels, prob])
    return CSEstimatorSpec(mode, loss=loss, train_op=train_op, host_call=host_call, predictions={"prob": prob})


if __name__ == "__main__":
    common.main(model_fn, train_fn, eval_fn, {"scale": True}, predict_fn=eval_fn)
