"""What the programs share: tiny data, and a walk through an estimator's four verbs."""

import os
import sys

import numpy as np
import tensorflow as tf

MODEL_DIR = sys.argv[1]
os.makedirs(MODEL_DIR)  # tensorflow-lattice writes to it before it trains
NUMBERS = np.random.RandomState(0)
X = NUMBERS.rand(32, 2).astype(np.float32)
LABELS = (X.sum(1) > 1).astype(np.int32)
COLUMNS = [tf.feature_column.numeric_column("x", (2,))]


def batches():
    """input_fn: four batches."""
    return tf.data.Dataset.from_tensor_slices(({"x": X}, LABELS)).batch(8)


def endless():
    """input_fn: the same batches again and again."""
    return batches().repeat()


def serving():
    """serving_input_receiver_fn of the features."""
    return tf.estimator.export.build_raw_serving_input_receiver_fn(
        {"x": tf.compat.v1.placeholder(tf.float32, [None, 2])}
    )()


def evaluate_predict_export(estimator, input_fn, receiver_fn):
    """Print the metrics, a prediction and the export's signatures of a trained estimator."""
    metrics = estimator.evaluate(input_fn)
    assert np.isfinite(metrics["loss"]), metrics
    print("METRICS", metrics["global_step"], sorted(map(str, metrics)))
    row = next(iter(estimator.predict(input_fn)))
    print("ROW", sorted(map(str, row)) if isinstance(row, dict) else np.shape(row))
    path = estimator.export_saved_model(MODEL_DIR, receiver_fn)
    print("EXPORT", sorted(tf.saved_model.load(path.decode()).signatures))
