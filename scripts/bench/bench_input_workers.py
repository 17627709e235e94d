"""Measures how the rate of an input pipeline changes with the number of input workers, in batches/s and as a ratio.

    python scripts/bench/bench_input_workers.py [--workers 0 1 2] [--kinds heavy images examples tokens] [--runs 9]

| kind | a batch | what a worker does for it |
|---|---|---|
| heavy | 8 numbers, 32 B | multiplies matrices, for about 40 ms |
| images | 32 pictures as float32, 19 MB | casts and scales bytes |
| examples | 64 parsed tf.train.Examples, 0.4 MB | parses |
| tokens | 8 x 128 numbers, 8 kB | almost nothing |

The consumer reads every number of a batch inside TensorFlow, as a model does. One launch starts all workers. Its chief
measures the cases in turn, so that other work on the machine affects all of them equally. A rate excludes the first
batches, because the pipeline starts during them, and the chief decides whether it computes the batches itself
(--only-workers: it never does). On N cores the ratio cannot exceed N.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict

KINDS = ("heavy", "images", "examples", "tokens")

CHIEF = """
import sys, time
import numpy as np
import tensorflow as tf
from cerebras_tensorflow.config import env
from cerebras_tensorflow.runtime.input_workers import chief

v1 = tf.compat.v1
v1.disable_eager_execution()
seconds, runs, workers, only_workers, kinds = float(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:5], sys.argv[5:]
if only_workers == "1":
    chief.Comparison.got = lambda self, work: None

def heavy():
    def value(seed):
        matrix = tf.random.stateless_uniform([300, 300], [seed, 1])
        step = lambda i, m: (i + 1, tf.tanh(m @ m / 300))
        return tf.reduce_sum(tf.while_loop(lambda i, _: i < 8, step, [0, matrix])[1])
    return tf.data.Dataset.range(1 << 40).map(value).batch(8)

def images():
    pictures = np.random.default_rng(1).integers(0, 256, (32, 224, 224, 3), np.uint8)
    dataset = tf.data.Dataset.from_tensor_slices((pictures, np.arange(32))).repeat()
    return dataset.map(lambda x, y: (tf.cast(x, tf.float32) / 255.0, y)).batch(32)

def examples():
    names = [f"feature_{number}" for number in range(6)]
    def example(number):
        value = tf.train.Feature(int64_list=tf.train.Int64List(value=range(number, number + 128)))
        return tf.train.Example(features=tf.train.Features(feature=dict.fromkeys(names, value))).SerializeToString()
    spec = {name: tf.io.FixedLenFeature([128], tf.int64) for name in names}
    dataset = tf.data.Dataset.from_tensor_slices([example(number) for number in range(500)]).shuffle(100, 1).repeat()
    return dataset.map(lambda text: tf.io.parse_single_example(text, spec)).batch(64)

def tokens():
    return tf.data.Dataset.range(1 << 40).map(lambda x: tf.fill([128], x)).batch(8)

def rate(kind, count):
    with tf.Graph().as_default():
        options = tf.data.Options()
        options.threading.private_threadpool_size = 1
        dataset = globals()[kind]().prefetch(1).with_options(options)
        if count:
            chief.start_workers(env.read().input_folder)
            dataset = chief.remote(dataset, env.read().input_folder, range(count), lambda: False)
        iterator = v1.data.make_initializable_iterator(dataset)
        batch = [tf.reduce_max(tensor) for tensor in tf.nest.flatten(iterator.get_next())]
        config = v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=2)
        with v1.Session(config=config) as session:
            session.run(iterator.initializer)
            begin, batches = time.perf_counter(), 0
            while batches < 5 or (batches < 600 and time.perf_counter() < begin + seconds):
                session.run(batch)
                batches += 1
            begin, batches = time.perf_counter(), 0
            while time.perf_counter() < begin + seconds:
                session.run(batch)
                batches += 1
            return batches / (time.perf_counter() - begin)

for run in range(runs):
    for kind in kinds:
        for count in map(int, workers.split(",")):
            print("rate", kind, count, rate(kind, count), flush=True)
"""


def rates(arguments: argparse.Namespace) -> dict[tuple[str, int], list[float]]:
    """Return the rates of each kind and number of workers, one for each run [batches/s]."""
    launcher = "import sys; from csrun.cli import csrun_wse; sys.exit(csrun_wse())"
    most = str(max(arguments.workers))
    options = ["--executor", "embedded", "--input-workers", most, "--local-tasks", most]
    words = [str(arguments.seconds), str(arguments.runs), ",".join(map(str, arguments.workers))]
    words += [str(int(arguments.only_workers)), *arguments.kinds]
    with tempfile.TemporaryDirectory() as home:
        environ = {**os.environ, "CEREBRAS_HOME": home, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, "-c", launcher, *options, "python", "-c", CHIEF, *words]
        done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=True)
    measured: dict[tuple[str, int], list[float]] = defaultdict(list)
    for line in done.stdout.splitlines():
        if line.startswith("rate "):
            _, kind, workers, rate = line.split()
            measured[kind, int(workers)].append(float(rate))
    return measured


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a run [s]")
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--only-workers", action="store_true", help="the chief never computes the batches itself")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {load:.1f}, {arguments.runs} runs")
    measured = rates(arguments)
    print(f"{'kind':>8}  {'workers':>7}  {'batches/s (median)':>18}  {'spread':>15}  median ratio to the first")
    for kind in arguments.kinds:
        first = measured[kind, arguments.workers[0]]
        for workers in arguments.workers:
            values = measured[kind, workers]
            ratio = statistics.median(value / other for value, other in zip(values, first, strict=True))
            spread = f"{min(values):.1f}-{max(values):.1f}"
            print(f"{kind:>8}  {workers:7d}  {statistics.median(values):18.1f}  {spread:>15}  {ratio:.2f}")


if __name__ == "__main__":
    main()
