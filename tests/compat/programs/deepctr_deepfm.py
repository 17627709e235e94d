"""deepctr 0.9.4: a DeepFM estimator, with train, evaluate, predict and export."""

import sys

import numpy as np
import pandas as pd
import tensorflow as tf
from deepctr.estimator import DeepFMEstimator
from deepctr.estimator.inputs import input_fn_pandas

column = tf.feature_column
numbers = np.random.RandomState(0)
data = pd.DataFrame(
    {
        "user": numbers.randint(0, 5, 64),
        "item": numbers.randint(0, 7, 64),
        "price": numbers.rand(64).astype(np.float32),
        "label": numbers.randint(0, 2, 64),
    }
)
sparse = [column.categorical_column_with_identity("user", 5), column.categorical_column_with_identity("item", 7)]
price = column.numeric_column("price")
linear, deep = [*sparse, price], [*(column.embedding_column(each, 4) for each in sparse), price]
model = DeepFMEstimator(linear, deep, task="binary", model_dir=sys.argv[1])
input_fn = input_fn_pandas(data, ["user", "item", "price"], "label", shuffle=False)
model.train(input_fn)
print("METRICS", sorted(model.evaluate(input_fn)))
print("ROW", sorted(next(model.predict(input_fn))))
spec = column.make_parse_example_spec(linear + deep)
print(
    "EXPORT", model.export_saved_model(sys.argv[1], tf.estimator.export.build_parsing_serving_input_receiver_fn(spec))
)
