"""neural-structured-learning 1.4.0: adversarial regularization around a DNNClassifier."""

import neural_structured_learning as nsl
import tensorflow as tf
from tiny import COLUMNS, MODEL_DIR, batches, endless, evaluate_predict_export, serving

base = tf.estimator.DNNClassifier([4], COLUMNS, MODEL_DIR)
estimator = nsl.estimator.add_adversarial_regularization(
    base,
    optimizer_fn=lambda: tf.compat.v1.train.AdagradOptimizer(0.1),
    adv_config=nsl.configs.make_adv_reg_config(multiplier=0.2, adv_step_size=0.05),
)
estimator.train(endless, max_steps=6)
evaluate_predict_export(estimator, batches, serving)
