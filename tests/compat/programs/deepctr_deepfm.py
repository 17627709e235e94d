"""deepctr 0.9.4: a DeepFM estimator."""

import numpy as np
import pandas as pd
import tensorflow as tf
from deepctr.estimator import DeepFMEstimator
from deepctr.estimator.inputs import input_fn_pandas
from tiny import MODEL_DIR, NUMBERS, evaluate_predict_export

column = tf.feature_column
data = pd.DataFrame(
    {
        "user": NUMBERS.randint(0, 5, 64),
        "item": NUMBERS.randint(0, 7, 64),
        "price": NUMBERS.rand(64).astype(np.float32),
        "label": NUMBERS.randint(0, 2, 64),
    }
)
sparse = [column.categorical_column_with_identity("user", 5), column.categorical_column_with_identity("item", 7)]
price = column.numeric_column("price")
linear, deep = [*sparse, price], [*(column.embedding_column(each, 4) for each in sparse), price]
model = DeepFMEstimator(linear, deep, task="binary", model_dir=MODEL_DIR)
input_fn = input_fn_pandas(data, ["user", "item", "price"], "label", shuffle=False)
model.train(input_fn)
spec = column.make_parse_example_spec(linear + deep)
evaluate_predict_export(model, input_fn, tf.estimator.export.build_parsing_serving_input_receiver_fn(spec))
