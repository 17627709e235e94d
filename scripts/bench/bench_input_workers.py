"""How does the rate of a CPU-heavy input_fn grow with the number of input workers? Answer in batches/s and as a ratio.

    python scripts/bench/bench_input_workers.py [--workers 0 1 2] [--batches 60] [--runs 3]

Each run is a launch, `csrun_wse --input-workers W`; the rate excludes the first five batches, and so the
start of TensorFlow in the workers. On N cores the ratio cannot exceed N.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile

CHIEF = """
import sys, time
import tensorflow as tf
from cerebras_tensorflow.runtime.input_workers import chief as input_workers

tf.compat.v1.disable_eager_execution()

def heavy(seed):
    matrix = tf.random.stateless_uniform([300, 300], [seed, 1])
    return tf.reduce_sum(tf.while_loop(lambda i, _: i < 8, lambda i, m: (i + 1, tf.tanh(m @ m / 300)), [0, matrix])[1])

options = tf.data.Options()
options.threading.private_threadpool_size = 1
dataset = tf.data.Dataset.range(1 << 40).map(heavy).batch(8).with_options(options)
iterator = tf.compat.v1.data.make_initializable_iterator(input_workers.distributed(dataset))
batch = iterator.get_next()
config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=2)
with tf.compat.v1.Session(config=config) as session:
    session.run(iterator.initializer)
    for _ in range(5):
        session.run(batch)
    begin = time.perf_counter()
    for _ in range(int(sys.argv[1])):
        session.run(batch)
    print("rate", int(sys.argv[1]) / (time.perf_counter() - begin))
"""


def rate(workers: int, batches: int) -> float:
    """Return the rate of one launch [batches/s]."""
    launcher = "import sys; from csrun.cli import csrun_wse; sys.exit(csrun_wse())"
    options = ["--executor", "embedded", "--input-workers", str(workers), "--local-tasks", str(workers)]
    with tempfile.TemporaryDirectory() as home:
        environ = {**os.environ, "CEREBRAS_HOME": home, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, "-c", launcher, *options, "python", "-c", CHIEF, str(batches)]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    return float(next(line.split()[1] for line in done.stdout.splitlines() if line.startswith("rate ")))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, load {load:.1f}, {arguments.runs} runs of {arguments.batches}"
    )
    print(f"{'workers':>7}  {'batches/s (median)':>18}  {'spread':>13}  ratio to the first")
    found: dict[int, list[float]] = {workers: [] for workers in arguments.workers}
    # In turns, so that other work on the machine affects all equally.
    for _ in range(arguments.runs):
        for workers in arguments.workers:
            found[workers].append(rate(workers, arguments.batches))
    first = None
    for workers, rates in found.items():
        rates.sort()
        median = statistics.median(rates)
        first = first or median
        print(f"{workers:7d}  {median:18.1f}  {rates[0]:6.1f}-{rates[-1]:6.1f}  {median / first:.2f}", flush=True)


if __name__ == "__main__":
    main()
