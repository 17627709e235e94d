"""tf-slim 1.1.0: slim layers, losses and train ops in a model_fn."""

import tensorflow as tf
import tf_slim as slim
from tiny import MODEL_DIR, batches, endless, evaluate_predict_export, serving

v1 = tf.compat.v1


def model_fn(features, labels, mode):
    with slim.arg_scope([slim.conv2d, slim.fully_connected], weights_regularizer=slim.l2_regularizer(1e-3)):
        images = tf.reshape(features["x"], [-1, 1, 2, 1])
        with slim.arg_scope([slim.batch_norm], is_training=mode == "train"):
            net = slim.repeat(images, 2, slim.conv2d, 4, [1, 2], normalizer_fn=slim.batch_norm)
        net = slim.dropout(slim.flatten(net), is_training=mode == "train")
        logits = slim.fully_connected(net, 2, activation_fn=None)
    predictions = {"classes": tf.argmax(logits, 1)}
    if mode == "infer":
        return tf.estimator.EstimatorSpec(mode, predictions)
    v1.losses.sparse_softmax_cross_entropy(labels, logits)
    loss = v1.losses.get_total_loss()
    metrics = {"accuracy": v1.metrics.accuracy(labels, predictions["classes"])}
    train_op = slim.learning.create_train_op(loss, v1.train.MomentumOptimizer(0.1, 0.9), clip_gradient_norm=1.0)
    return tf.estimator.EstimatorSpec(mode, predictions, loss, train_op, metrics)


estimator = tf.estimator.Estimator(model_fn, MODEL_DIR)
estimator.train(endless, max_steps=6)
evaluate_predict_export(estimator, batches, serving)
