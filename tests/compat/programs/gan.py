"""tensorflow-gan 2.1.0: GANEstimator."""

import tensorflow as tf
import tensorflow_gan as tfgan
from tiny import MODEL_DIR, X, evaluate_predict_export

v1 = tf.compat.v1


def generator(noise, mode):
    return v1.layers.dense(v1.layers.dense(noise, 4, tf.nn.relu), 2)


def discriminator(data, condition, mode):
    return v1.layers.dense(v1.layers.dense(data, 4, tf.nn.relu), 1)


def pairs():
    noise = tf.data.Dataset.from_tensors(tf.zeros([3])).repeat(32)
    return tf.data.Dataset.zip(
        (noise.map(lambda x: x + tf.random.normal([3])), tf.data.Dataset.from_tensor_slices(X))
    ).batch(8)


def serving():
    noise = v1.placeholder(tf.float32, [None, 3])
    return tf.estimator.export.TensorServingInputReceiver(noise, {"noise": noise})


def metrics(model):
    return {"mean": v1.metrics.mean(model.generated_data)}


estimator = tfgan.estimator.GANEstimator(
    MODEL_DIR,
    generator_fn=generator,
    discriminator_fn=discriminator,
    generator_loss_fn=tfgan.losses.wasserstein_generator_loss,
    discriminator_loss_fn=tfgan.losses.wasserstein_discriminator_loss,
    generator_optimizer=v1.train.AdamOptimizer(0.01, 0.5),
    discriminator_optimizer=v1.train.AdamOptimizer(0.01, 0.5),
    get_eval_metric_ops_fn=metrics,
)
estimator.train(lambda: pairs().repeat(), max_steps=6)
evaluate_predict_export(estimator, pairs, serving)
