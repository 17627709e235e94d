"""shap 0.51.0: Shapley values of the predictions of an estimator."""

import numpy as np
import shap
import tensorflow as tf
from tiny import COLUMNS, MODEL_DIR, X, batches, endless, evaluate_predict_export, serving

estimator = tf.estimator.DNNClassifier([4], COLUMNS, MODEL_DIR)
estimator.train(endless, max_steps=6)


def probabilities(rows):
    feed = tf.compat.v1.estimator.inputs.numpy_input_fn({"x": rows.astype(np.float32)}, shuffle=False)
    return np.array([row["probabilities"][1] for row in estimator.predict(feed)])


values = shap.KernelExplainer(probabilities, X[:4]).shap_values(X[:2], nsamples=8)
assert values.shape == (2, 2), values
evaluate_predict_export(estimator, batches, serving)
