"""One task of a TF_CONFIG cluster, as a script for tf.estimator has it.

`python cluster_task.py FOLDER MAX_STEPS [KIND]`. KIND is "async" or "sync" (SyncReplicasOptimizer). Each task
writes what it did to FOLDER/TASK.json.

Where a file FOLDER/fragile names this task, the task removes the file and kills itself after some steps. Tasks at
step HELD wait until no such file is left and the next life of that task has trained.
"""

import json
import os
import signal
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import numpy as np
import tensorflow as tf

import cerebras_tensorflow  # noqa: F401 - makes tf.estimator ours

v1 = tf.compat.v1
HELD = 20


def model_fn(features, labels, mode, params, config):
    """A line, fitted by gradient descent."""
    w = v1.get_variable("w", [4, 1], initializer=v1.zeros_initializer())
    predictions = tf.matmul(features["x"], w)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, {"p": predictions})
    loss = tf.reduce_mean(tf.square(predictions - labels))
    optimizer = v1.train.GradientDescentOptimizer(0.05)
    hooks = []
    if params["kind"] == "sync":
        workers = config.num_worker_replicas
        optimizer = v1.train.SyncReplicasOptimizer(optimizer, workers, workers)
        hooks.append(optimizer.make_session_run_hook(config.is_chief, num_tokens=0))
    train_op = None
    if mode == tf.estimator.ModeKeys.TRAIN:
        train_op = optimizer.minimize(loss, v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, {"p": predictions}, loss, train_op, training_hooks=hooks)


def input_fn():
    """Batches in order, without end."""
    x = np.random.default_rng(1).normal(size=(24, 4)).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices(({"x": x}, x.sum(1, keepdims=True))).repeat().batch(4)


def serving():
    """serving_input_receiver_fn."""
    return tf.estimator.export.build_raw_serving_input_receiver_fn({"x": tf.zeros([1, 4])})()


class Diary(v1.train.SessionRunHook):
    """Writes how many steps this task took, and on which devices its ops are."""

    def __init__(self, folder, task, is_second_life):
        self._folder, self._task, self._is_second_life = folder, task, is_second_life
        self._taken = 0

    def begin(self):
        self._device = v1.trainable_variables()[0].device

    def before_run(self, context):
        return v1.train.SessionRunArgs(v1.train.get_global_step())

    def after_run(self, context, values):
        self._taken += 1
        fragile = os.path.join(self._folder, "fragile")
        if _read(fragile) == self._task:
            if self._taken == 3:
                os.replace(fragile, os.path.join(self._folder, "died"))
                os.kill(os.getpid(), signal.SIGKILL)
        elif self._is_second_life:
            with open(os.path.join(self._folder, "lives"), "w"):
                pass
        elif values.results >= HELD:
            while any(os.path.exists(os.path.join(self._folder, name)) for name in ("fragile", "died")) and not (
                os.path.exists(os.path.join(self._folder, "lives"))
            ):
                time.sleep(0.05)

    def end(self, session):
        with open(os.path.join(self._folder, f"{self._task}.json"), "w") as file:
            json.dump({"steps": self._taken, "device": self._device}, file)


def _read(path):
    """Return the text of a file; "" if it is not there."""
    try:
        with open(path) as file:
            return file.read()
    except FileNotFoundError:
        return ""


def main(folder, max_steps, kind="async"):
    """Run the task."""
    v1.logging.set_verbosity(v1.logging.INFO)
    given = json.loads(os.environ["TF_CONFIG"])["task"]
    task = f"{given['type']}{given['index']}"
    config = tf.estimator.RunConfig(
        os.path.join(folder, "model"),
        1,
        save_checkpoints_steps=20,
        save_summary_steps=10,
        log_step_count_steps=10,
        experimental_max_worker_delay_secs=0,
        session_creation_timeout_secs=100,
    )
    estimator = tf.estimator.Estimator(model_fn, None, config, {"kind": kind})
    diary = Diary(folder, task, os.path.exists(os.path.join(folder, "died")))
    exporter = tf.estimator.FinalExporter("last", serving)
    evaluation = tf.estimator.EvalSpec(
        lambda: input_fn().take(6), None, exporters=exporter, start_delay_secs=0, throttle_secs=0
    )
    result = tf.estimator.train_and_evaluate(
        estimator, tf.estimator.TrainSpec(input_fn, int(max_steps), [diary]), evaluation
    )
    assert result is None


if __name__ == "__main__":
    main(*sys.argv[1:])
