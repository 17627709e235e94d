"""gin-config 0.5.0: a configurable model_fn, and GinConfigSaverHook."""

import os

import gin
import gin.tf
import tensorflow as tf
from tiny import MODEL_DIR, batches, endless, evaluate_predict_export, serving

v1 = tf.compat.v1


@gin.configurable
def network(features, units=gin.REQUIRED):
    return v1.layers.dense(v1.layers.dense(features, units, tf.nn.relu), 2)


@gin.configurable
def optimizer(rate=0.1):
    return v1.train.GradientDescentOptimizer(rate)


def model_fn(features, labels, mode):
    logits = network(features["x"])
    predictions = {"classes": tf.argmax(logits, 1)}
    if mode == "infer":
        return tf.estimator.EstimatorSpec(mode, predictions)
    loss = v1.losses.sparse_softmax_cross_entropy(labels, logits)
    train_op = optimizer().minimize(loss, v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, predictions, loss, train_op)


gin.parse_config("network.units = 4\noptimizer.rate = 0.2")
estimator = tf.estimator.Estimator(model_fn, MODEL_DIR)
estimator.train(endless, max_steps=6, hooks=[gin.tf.GinConfigSaverHook(MODEL_DIR)])
with open(os.path.join(MODEL_DIR, "operative_config-0.gin"), encoding="utf-8") as file:
    assert "network.units = 4" in file.read()
evaluate_predict_export(estimator, batches, serving)
