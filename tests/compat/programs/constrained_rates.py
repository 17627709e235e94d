"""tensorflow-constrained-optimization 0.2: a classifier whose rate of positive predictions is bounded."""

import tensorflow as tf
import tensorflow_constrained_optimization as tfco
from tiny import MODEL_DIR, batches, endless, evaluate_predict_export, serving

v1 = tf.compat.v1


def model_fn(features, labels, mode):
    logits = v1.layers.dense(features["x"], 1)[:, 0]
    predictions = {"positive": logits > 0}
    if mode == "infer":
        return tf.estimator.EstimatorSpec(mode, predictions)
    loss = v1.losses.sigmoid_cross_entropy(labels, logits)
    metrics = {"accuracy": v1.metrics.accuracy(labels, predictions["positive"])}
    if mode == "eval":
        return tf.estimator.EstimatorSpec(mode, predictions, loss, eval_metric_ops=metrics)
    context = tfco.rate_context(logits, labels)
    problem = tfco.RateMinimizationProblem(tfco.error_rate(context), [tfco.positive_prediction_rate(context) <= 0.5])
    optimizer = tfco.ProxyLagrangianOptimizerV1(v1.train.AdagradOptimizer(0.1))
    train_op = optimizer.minimize(problem, v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, predictions, loss, train_op)


estimator = tf.estimator.Estimator(model_fn, MODEL_DIR)
estimator.train(endless, max_steps=6)
evaluate_predict_export(estimator, batches, serving)
