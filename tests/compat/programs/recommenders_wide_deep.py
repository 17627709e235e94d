"""recommenders 1.2.1: the wide and deep model, trained and exported by the package's own functions."""

import os

import numpy as np
import pandas as pd
import tensorflow as tf
from recommenders.models.wide_deep.wide_deep_utils import build_feature_columns, build_model
from recommenders.utils.tf_utils import export_model, pandas_input_fn
from tiny import MODEL_DIR, NUMBERS

data = pd.DataFrame(
    {"userID": NUMBERS.randint(0, 4, 40), "itemID": NUMBERS.randint(0, 6, 40), "rating": NUMBERS.rand(40)}
)
wide, deep = build_feature_columns(range(4), range(6), crossed_feat_dim=20, user_dim=2, item_dim=2)
model = build_model(MODEL_DIR, wide, deep, dnn_hidden_units=(4, 4), dnn_dropout=0.1, save_checkpoints_steps=5, seed=1)
train = pandas_input_fn(data, y_col="rating", batch_size=8, num_epochs=2, shuffle=True, seed=1)
once = pandas_input_fn(data, y_col="rating", batch_size=8)
model.train(train)
metrics = model.evaluate(once)
assert np.isfinite(metrics["loss"])
print("METRICS", metrics["global_step"], sorted(metrics))
print("ROW", sorted(next(model.predict(once))))
path = export_model(model, train, once, wide + deep, os.path.join(MODEL_DIR, "export"))
print("EXPORT", sorted(tf.saved_model.load(path, ["serve"]).signatures))
