"""tensorflow-ranking 0.5.5: its DNN ranking estimator."""

import numpy as np
import tensorflow as tf
import tensorflow_ranking as tfr
from tiny import MODEL_DIR, NUMBERS, evaluate_predict_export

queries = NUMBERS.rand(16, 1).astype(np.float32)
documents = NUMBERS.rand(16, 4, 3).astype(np.float32)
labels = NUMBERS.randint(0, 3, (16, 4)).astype(np.float32)


def batches():
    return tf.data.Dataset.from_tensor_slices(({"query": queries, "document": documents}, labels)).batch(4)


def serving():
    shapes = {"query": [None, 1], "document": [None, 4, 3]}
    features = {name: tf.compat.v1.placeholder(tf.float32, shape) for name, shape in shapes.items()}
    return tf.estimator.export.ServingInputReceiver(features, features)


estimator = tfr.estimator.make_dnn_ranking_estimator(
    example_feature_columns={"document": tf.feature_column.numeric_column("document", (3,))},
    hidden_units=[4],
    context_feature_columns={"query": tf.feature_column.numeric_column("query")},
    optimizer=tf.compat.v1.train.AdagradOptimizer(0.1),
    loss="approx_ndcg_loss",
    model_dir=MODEL_DIR,
    listwise_inference=True,
)
estimator.train(batches)
evaluate_predict_export(estimator, batches, serving)
