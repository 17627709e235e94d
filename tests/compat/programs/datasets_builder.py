"""tensorflow-datasets 4.9.4: a builder of our own as the input of an estimator."""

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
from tiny import COLUMNS, LABELS, MODEL_DIR, X, batches, evaluate_predict_export, serving


class Tiny(tfds.core.GeneratorBasedBuilder):
    """Rows of two numbers."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        row = tfds.features.Tensor(shape=(2,), dtype=np.float32)
        features = tfds.features.FeaturesDict({"x": row, "label": np.int64})
        return tfds.core.DatasetInfo(builder=self, features=features, supervised_keys=("x", "label"))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for number, (row, label) in enumerate(zip(X, LABELS, strict=True)):
            yield number, {"x": row, "label": int(label)}


builder = Tiny(data_dir=MODEL_DIR + "/data")
builder.download_and_prepare()


def train_input():
    dataset = builder.as_dataset(split="train", shuffle_files=True)
    return dataset.map(lambda row: ({"x": row["x"]}, row["label"])).repeat().batch(8)


estimator = tf.estimator.DNNClassifier([4], COLUMNS, MODEL_DIR)
estimator.train(train_input, max_steps=6)
evaluate_predict_export(estimator, batches, serving)
