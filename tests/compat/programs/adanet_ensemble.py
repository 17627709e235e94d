"""adanet 0.9.0: AutoEnsembleEstimator over a linear and a deep candidate, two iterations."""

import adanet
import tensorflow as tf
from tiny import COLUMNS, MODEL_DIR, batches, endless, evaluate_predict_export, serving

head = tf.estimator.BinaryClassHead()


def optimizer():
    return tf.keras.optimizers.legacy.SGD(0.1)


estimator = adanet.AutoEnsembleEstimator(
    head,
    {
        "linear": tf.estimator.LinearEstimator(head, COLUMNS, optimizer=optimizer),
        "dnn": tf.estimator.DNNEstimator(head, [4], COLUMNS, optimizer=optimizer),
    },
    max_iteration_steps=5,
    model_dir=MODEL_DIR,
)
estimator.train(endless, max_steps=10)
evaluate_predict_export(estimator, batches, serving)
