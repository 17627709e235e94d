"""tf-models-official 2.2.2: the training hooks of its estimator scripts, with their logs of metrics."""

import tensorflow as tf
from official.utils.logs import hooks_helper, logger
from tiny import MODEL_DIR, batches, endless, evaluate_predict_export, serving

tf.compat.v1.disable_eager_execution()


def model_fn(features, labels, mode):
    logits = tf.compat.v1.layers.dense(features["x"], 2)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, {"logits": logits})
    loss = tf.compat.v1.losses.sparse_softmax_cross_entropy(labels, logits)
    tf.identity(loss, "cross_entropy")
    tf.identity(0.1, "learning_rate")
    accuracy = tf.compat.v1.metrics.accuracy(labels, tf.argmax(logits, 1))
    tf.identity(accuracy[1], "train_accuracy")
    train_op = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss, tf.compat.v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, {"logits": logits}, loss, train_op, {"accuracy": accuracy})


class Kept(logger.BaseBenchmarkLogger):
    """Keeps what the hooks log."""

    def __init__(self):
        self.names = set()

    def log_metric(self, name, value, unit=None, global_step=None, extras=None):
        if logger._process_metric_to_json(name, value, unit, global_step, extras):
            self.names.add(name)


logger._benchmark_logger = kept = Kept()
hooks = hooks_helper.get_train_hooks(
    ["LoggingTensorHook", "ProfilerHook", "ExamplesPerSecondHook", "LoggingMetricHook", "StepCounterHook"],
    model_dir=MODEL_DIR,
    batch_size=8,
    every_n_iter=2,
    save_steps=3,
    every_n_steps=2,
    every_n_secs=0.001,
)
estimator = tf.estimator.Estimator(model_fn, MODEL_DIR)
estimator.train(endless, hooks=hooks, max_steps=6)

assert kept.names == {"cross_entropy", "learning_rate", "train_accuracy"}, kept.names
evaluate_predict_export(estimator, batches, serving)
