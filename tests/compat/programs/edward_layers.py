"""edward2 0.0.2: Bayesian layers in a model_fn."""

import edward2 as ed
import tensorflow as tf
from tiny import MODEL_DIR, batches, endless, evaluate_predict_export, serving

v1 = tf.compat.v1


def model_fn(features, labels, mode):
    layer = ed.layers.DenseReparameterization(2)
    logits = layer(features["x"])
    predictions = {"classes": tf.argmax(logits, 1)}
    if mode == "infer":
        return tf.estimator.EstimatorSpec(mode, predictions)
    loss = v1.losses.sparse_softmax_cross_entropy(labels, logits) + sum(layer.losses)
    train_op = v1.train.AdamOptimizer(0.05).minimize(loss, v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, predictions, loss, train_op)


estimator = tf.estimator.Estimator(model_fn, MODEL_DIR)
estimator.train(endless, max_steps=6)
evaluate_predict_export(estimator, batches, serving)
