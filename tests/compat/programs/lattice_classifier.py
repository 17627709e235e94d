"""tensorflow-lattice 2.0.13: a calibrated lattice that is monotonic in its first feature."""

import tensorflow as tf
import tensorflow_lattice as tfl
from tiny import LABELS, MODEL_DIR, X, evaluate_predict_export

columns = [tf.feature_column.numeric_column(name) for name in ("a", "b")]


def batches():
    return tf.data.Dataset.from_tensor_slices(({"a": X[:, 0], "b": X[:, 1]}, LABELS)).batch(8)


configs = [
    tfl.configs.FeatureConfig("a", monotonicity="increasing", pwl_calibration_num_keypoints=5),
    tfl.configs.FeatureConfig("b", lattice_size=3, pwl_calibration_num_keypoints=4),
]
estimator = tfl.estimators.CannedClassifier(
    feature_columns=columns,
    model_config=tfl.configs.CalibratedLatticeConfig(feature_configs=configs),
    feature_analysis_input_fn=batches,
    optimizer=tf.keras.optimizers.legacy.Adam(0.1),
    model_dir=MODEL_DIR,
)
estimator.train(lambda: batches().repeat(4))
spec = tf.feature_column.make_parse_example_spec(columns)
evaluate_predict_export(estimator, batches, tf.estimator.export.build_parsing_serving_input_receiver_fn(spec))
