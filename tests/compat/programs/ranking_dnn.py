"""tensorflow-ranking 0.5.5: its DNN ranking estimator, with train, evaluate and predict."""

import sys

import numpy as np
import tensorflow as tf
import tensorflow_ranking as tfr

numbers = np.random.RandomState(0)
queries = numbers.rand(16, 1).astype(np.float32)
documents = numbers.rand(16, 4, 3).astype(np.float32)
labels = numbers.randint(0, 3, (16, 4)).astype(np.float32)


def input_fn():
    return tf.data.Dataset.from_tensor_slices(({"query": queries, "document": documents}, labels)).batch(4)


estimator = tfr.estimator.make_dnn_ranking_estimator(
    example_feature_columns={"document": tf.feature_column.numeric_column("document", (3,))},
    hidden_units=[4],
    context_feature_columns={"query": tf.feature_column.numeric_column("query")},
    optimizer=tf.compat.v1.train.AdagradOptimizer(0.1),
    loss="approx_ndcg_loss",
    model_dir=sys.argv[1],
    listwise_inference=True,
)
estimator.train(input_fn)
print("METRICS", sorted(estimator.evaluate(input_fn)))
print("ROW", len(next(estimator.predict(input_fn))))
