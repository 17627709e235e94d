"""tensorflow-probability 0.25.0: the model_fn of its example, a variational autoencoder."""

import tensorflow as tf
import tensorflow_probability as tfp
from tiny import MODEL_DIR, batches, endless, evaluate_predict_export, serving

v1 = tf.compat.v1
tfd = tfp.distributions


def model_fn(features, labels, mode, params, config):
    x = features["x"]
    code = v1.layers.dense(v1.layers.dense(x, 8, tf.nn.softplus), 4)
    posterior = tfd.MultivariateNormalDiag(code[:, :2], tf.nn.softplus(code[:, 2:]))
    prior = tfd.MultivariateNormalDiag(tf.zeros([2]), tf.ones([2]))
    z = posterior.sample(seed=1)
    decoded = v1.layers.dense(v1.layers.dense(z, 8, tf.nn.softplus), 2)
    likelihood = tfd.Independent(tfd.Normal(decoded, 1.0), 1)
    predictions = {"mean": decoded}
    if mode == "infer":
        return tf.estimator.EstimatorSpec(mode, predictions)
    distortion = -likelihood.log_prob(x)
    rate = tfd.kl_divergence(posterior, prior)
    v1.summary.scalar("rate", tf.reduce_mean(rate))
    loss = tf.reduce_mean(rate + distortion)
    step = v1.train.get_or_create_global_step()
    learning_rate = v1.train.cosine_decay(0.05, step, 100)
    train_op = v1.train.AdamOptimizer(learning_rate).minimize(loss, global_step=step)
    metrics = {"rate": v1.metrics.mean(rate), "distortion": v1.metrics.mean(distortion)}
    return tf.estimator.EstimatorSpec(mode, predictions, loss, train_op, metrics)


estimator = tf.estimator.Estimator(model_fn, MODEL_DIR, params={})
estimator.train(endless, max_steps=6)
evaluate_predict_export(estimator, batches, serving)
