"""sacred 0.8.7: LogFileWriter notes where an estimator of an experiment writes its summaries."""

import tensorflow as tf
from sacred import Experiment
from sacred.stflow import LogFileWriter
from tiny import COLUMNS, MODEL_DIR, batches, endless, evaluate_predict_export, serving

experiment = Experiment("tiny", save_git_info=False)


@experiment.config
def config():
    units = 4  # noqa: F841 - sacred takes the local variables as the settings


@experiment.main
@LogFileWriter(experiment)
def main(units):
    estimator = tf.estimator.DNNClassifier([units], COLUMNS, MODEL_DIR)
    estimator.train(endless, max_steps=6)
    evaluate_predict_export(estimator, batches, serving)


run = experiment.run()
assert run.info["tensorflow"]["logdirs"], run.info
