"""tensorflow-privacy 0.9.0: a DNNClassifier that trains with differential privacy."""

import tensorflow as tf
from tensorflow_privacy.privacy.estimators.v1.dnn import DNNClassifier
from tensorflow_privacy.privacy.optimizers.dp_optimizer import DPAdamGaussianOptimizer
from tiny import COLUMNS, MODEL_DIR, batches, endless, evaluate_predict_export, serving

estimator = DNNClassifier(
    [4],
    COLUMNS,
    MODEL_DIR,
    optimizer=lambda: DPAdamGaussianOptimizer(
        l2_norm_clip=1.0, noise_multiplier=0.1, num_microbatches=4, learning_rate=0.01
    ),
    loss_reduction=tf.compat.v1.losses.Reduction.NONE,
)
estimator.train(endless, max_steps=4)
evaluate_predict_export(estimator, batches, serving)
