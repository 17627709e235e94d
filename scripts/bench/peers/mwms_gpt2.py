"""TensorFlow's MultiWorkerMirroredStrategy on a model of Keras: the tasks of TF_CONFIG share the batch.

Task 0 prints the time of a step [s].
"""

from __future__ import annotations

import json
import os
import statistics
import time
from typing import Any

import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before TensorFlow runs an op

import keras  # noqa: E402
import numpy as np  # noqa: E402
from peers.keras_gpt2 import layers_of  # noqa: E402
from peers.shape import LEARNING_RATE, batch, work  # noqa: E402


def main() -> None:
    """Train as one of the tasks."""
    one = work()
    keras.utils.set_random_seed(1)
    ids = batch(one).astype(np.int32)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    data = tf.data.Dataset.from_tensor_slices((ids, np.roll(ids, -1, 1))).repeat()
    shares = iter(strategy.experimental_distribute_dataset(data.batch(one.batch).with_options(options)))
    with strategy.scope():
        model = layers_of(one)
        optimizer = keras.optimizers.Adam(LEARNING_RATE)
        optimizer.build(model.trainable_variables)

    def replica_step(ids: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            logits = model(ids, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_sum(losses) / (one.batch * one.sequence)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def step(ids: Any, labels: Any) -> Any:
        losses = strategy.run(replica_step, (ids, labels))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    times = []
    for _ in range(one.steps):
        ids_share, labels_share = next(shares)
        begin = time.perf_counter()
        float(step(ids_share, labels_share))
        times.append(time.perf_counter() - begin)
    if json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 0:
        print(statistics.median(times[1:]))


if __name__ == "__main__":
    main()
