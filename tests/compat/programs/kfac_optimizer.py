"""kfac 0.2.4: PeriodicInvCovUpdateKfacOpt and its layer collection in a model_fn."""

import kfac
import tensorflow as tf
from tiny import MODEL_DIR, batches, endless, evaluate_predict_export, serving

v1 = tf.compat.v1


def model_fn(features, labels, mode):
    x = features["x"]
    layer = v1.layers.Dense(2, name="logits")
    logits = layer(x)
    predictions = {"classes": tf.argmax(logits, 1)}
    if mode == "infer":
        return tf.estimator.EstimatorSpec(mode, predictions)
    loss = v1.losses.sparse_softmax_cross_entropy(labels, logits)
    if mode == "eval":
        return tf.estimator.EstimatorSpec(mode, predictions, loss)
    collection = kfac.LayerCollection()
    collection.register_fully_connected((layer.kernel, layer.bias), x, logits)
    collection.register_categorical_predictive_distribution(logits)
    optimizer = kfac.PeriodicInvCovUpdateKfacOpt(
        learning_rate=0.1,
        cov_ema_decay=0.9,
        damping=0.01,
        layer_collection=collection,
        momentum=0.9,
        invert_every=2,
        cov_update_every=1,
    )
    return tf.estimator.EstimatorSpec(mode, predictions, loss, optimizer.minimize(loss, v1.train.get_global_step()))


estimator = tf.estimator.Estimator(model_fn, MODEL_DIR)
estimator.train(endless, max_steps=6)
evaluate_predict_export(estimator, batches, serving)
