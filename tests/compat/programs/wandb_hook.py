"""wandb 0.31.0, offline: WandbHook logs the summaries of training."""

import os

os.environ.update(WANDB_MODE="offline", WANDB_SILENT="true")

import tensorflow as tf
import wandb
from tiny import COLUMNS, MODEL_DIR, batches, endless, evaluate_predict_export, serving
from wandb.integration.tensorflow import WandbHook

run = wandb.init(dir=MODEL_DIR)
estimator = tf.estimator.DNNClassifier([4], COLUMNS, MODEL_DIR)
estimator.train(endless, max_steps=6, hooks=[WandbHook(steps_per_log=2)])
evaluate_predict_export(estimator, batches, serving)
run.finish()
