"""Measures how fast one process computes the batches of a dataset, with several numbers of CPUs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tensorflow as tf

from cerebras_tensorflow.logs import run_log

WARM_UP_BATCHES = 2
MAX_BATCHES = 200
MAX_WALL_S = 10.0


def write_report(dataset: Any, path: Path, cpu_counts: Sequence[int] = ()) -> None:
    """Measure a dataset in the current graph, and write its rates as JSON.

    Args:
        dataset: The dataset that input_fn returned.
        path: The file to write: a list with one object for each number of CPUs. Its keys are cpus, batches, samples
            (dim 0 of the first component that has one), wall_s, cpu_s of this process, and is_exhausted (whether the
            dataset ended before MAX_BATCHES and MAX_WALL_S).
        cpu_counts: Numbers of CPUs to measure with. Numbers beyond this process's CPUs are skipped. If none is left,
            all its CPUs are used.
    """
    own = sorted(os.sched_getaffinity(0))
    counts = [count for count in cpu_counts if count <= len(own)] or [len(own)]
    measured = []
    for number, count in enumerate(counts, start=1):
        with _only(own[:count]):
            measured.append({"cpus": count, **_measured(dataset, count)})
        run_log.info("Input analysis: %d %% done, measured with %d CPU(s).", 100 * number // len(counts), count)
    path.write_text(json.dumps(measured), encoding="utf-8")


def _measured(dataset: Any, cpus: int) -> dict[str, Any]:
    options = tf.data.Options()
    options.threading.private_threadpool_size = cpus
    iterator = tf.compat.v1.data.make_initializable_iterator(dataset.with_options(options))
    tensors = tf.nest.flatten(iterator.get_next(), expand_composites=True)
    sizes = [tf.shape(tensor)[0] for tensor in tensors if tensor.shape.rank != 0 and tensor.dtype != tf.variant][:1]
    batches = samples = 0
    is_exhausted = False
    # A thread inherits the CPUs of the thread that starts it, so the session must start its own threads.
    config = tf.compat.v1.ConfigProto(
        use_per_session_threads=True, inter_op_parallelism_threads=cpus, intra_op_parallelism_threads=cpus
    )
    with tf.compat.v1.Session(config=config) as session:
        session.run([tf.compat.v1.tables_initializer(), iterator.initializer])
        begin, cpu_begin = time.perf_counter(), time.process_time()
        try:
            for number in range(WARM_UP_BATCHES + MAX_BATCHES):
                if number == WARM_UP_BATCHES:
                    begin, cpu_begin, samples, batches = time.perf_counter(), time.process_time(), 0, 0
                values = session.run([*sizes, *tensors])
                batches += 1
                samples += int(values[0]) if sizes else 1
                if time.perf_counter() - begin > MAX_WALL_S:
                    break
        except tf.errors.OutOfRangeError:
            is_exhausted = True
    return {
        "batches": batches,
        "samples": samples,
        "wall_s": time.perf_counter() - begin,
        "cpu_s": time.process_time() - cpu_begin,
        "is_exhausted": is_exhausted,
    }


@contextmanager
def _only(cpus: Sequence[int]) -> Iterator[None]:
    """Restrict this thread, and threads that it starts, to some CPUs."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
