"""How fast one process computes the batches of a dataset, measured here and now."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import tensorflow as tf

WARM_UP_BATCHES = 2
MAX_BATCHES = 200
MAX_WALL_S = 10.0


def write_report(dataset: Any, path: Path) -> None:
    """Measure a dataset in the current graph, and write what was found as JSON.

    The file holds batches, samples (dim 0 of the first component that has one), wall_s, cpu_s of this process, and
    is_exhausted when the dataset ended before MAX_BATCHES and MAX_WALL_S.
    """
    iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
    tensors = tf.nest.flatten(iterator.get_next(), expand_composites=True)
    sizes = [tf.shape(tensor)[0] for tensor in tensors if tensor.shape.rank != 0 and tensor.dtype != tf.variant][:1]
    batches = samples = 0
    is_exhausted = False
    with tf.compat.v1.Session() as session:
        session.run([tf.compat.v1.tables_initializer(), iterator.initializer])
        begin, cpu_begin = time.perf_counter(), time.process_time()
        try:
            for number in range(WARM_UP_BATCHES + MAX_BATCHES):
                if number == WARM_UP_BATCHES:
                    begin, cpu_begin, samples, batches = time.perf_counter(), time.process_time(), 0, 0
                found = session.run([*sizes, *tensors])
                batches += 1
                samples += int(found[0]) if sizes else 1
                if time.perf_counter() - begin > MAX_WALL_S:
                    break
        except tf.errors.OutOfRangeError:
            is_exhausted = True
    report = {
        "batches": batches,
        "samples": samples,
        "wall_s": time.perf_counter() - begin,
        "cpu_s": time.process_time() - cpu_begin,
        "is_exhausted": is_exhausted,
    }
    path.write_text(json.dumps(report), encoding="utf-8")
