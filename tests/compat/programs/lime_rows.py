"""lime 0.2.0.1: a row explained by the predictions of an estimator."""

import lime.lime_tabular
import numpy as np
import tensorflow as tf
from tiny import COLUMNS, MODEL_DIR, X, batches, endless, evaluate_predict_export, serving

estimator = tf.estimator.DNNClassifier([4], COLUMNS, MODEL_DIR)
estimator.train(endless, max_steps=6)


def probabilities(rows):
    feed = tf.compat.v1.estimator.inputs.numpy_input_fn({"x": rows.astype(np.float32)}, shuffle=False)
    return np.array([row["probabilities"] for row in estimator.predict(feed)])


explainer = lime.lime_tabular.LimeTabularExplainer(X, random_state=0)
assert explainer.explain_instance(X[0], probabilities, num_samples=50).as_list()
evaluate_predict_export(estimator, batches, serving)
