"""Input workers of a launch: the same batches whoever computes them, and what happens when one dies."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cerebras_tensorflow.system import jobs

CHIEF = """
import hashlib, sys
import tensorflow as tf
from cerebras_tensorflow.runtime.input_workers import chief as input_workers

tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.INFO)
tf.compat.v1.disable_eager_execution()
tf.compat.v1.set_random_seed(1)
dataset = tf.data.Dataset.range(103).shuffle(50).repeat(None if sys.argv[1] == "for ever" else 2)
if sys.argv[1] == "python":
    dataset = dataset.map(lambda x: tf.numpy_function(lambda y: y, [x], tf.int64))
dataset = dataset.map(lambda x: {"a": tf.sin(tf.cast(x, tf.float32)), "b": tf.fill([3], x)}, num_parallel_calls=2)
dataset = input_workers.distributed(dataset.batch(7, drop_remainder=sys.argv[1] == "python").prefetch(2))
iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
batch = iterator.get_next()
digest, count = hashlib.sha256(), 0
with tf.compat.v1.Session() as session:
    session.run(iterator.initializer)
    try:
        while True:
            for value in session.run(batch).values():
                digest.update(value.tobytes())
            count += 1
            if count == 5:
                print("five batches", flush=True)
    except tf.errors.OutOfRangeError:
        print("result", count, digest.hexdigest())
"""


def result(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr[-3000:]
    return next(line for line in done.stdout.splitlines() if line.startswith("result"))


@pytest.fixture
def launch(home: Path, argv: Callable[..., list[str]]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """csrun_wse around the chief above, with time for TensorFlow to load in every process."""
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}

    def run(kind: str, *options: str) -> subprocess.CompletedProcess[str]:
        words = argv("csrun_wse", *options, "python", "-c", CHIEF, kind)
        return subprocess.run(words, capture_output=True, text=True, timeout=240, env=environ)

    return run


def test_batches_do_not_depend_on_the_number_of_workers(launch) -> None:
    alone = result(launch("twice", "--executor", "embedded"))
    assert alone.split()[1] == "30"
    done = launch("twice", "--executor", "embedded", "--input-workers", "2")
    assert "Input is computed by 2 input worker(s)." in done.stderr
    assert result(done) == alone


@pytest.mark.slow
def test_a_dataset_that_calls_python_stays_in_the_chief_and_says_why(launch) -> None:
    done = launch("python", "--executor", "embedded", "--input-workers", "1")
    assert result(done).split()[1] == "29"
    assert "it calls Python" in done.stderr


@pytest.mark.slow
def test_a_dead_worker_stops_the_launch_cleanly(home: Path, argv: Callable[..., list[str]]) -> None:
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    words = argv("csrun_wse", "--executor", "embedded", "--input-workers", "2", "python", "-c", CHIEF, "for ever")
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if line.strip() == "five batches":
                break
        folder = jobs.job_folder(home, jobs.listed(home)[0].id)
        os.kill(json.loads((folder / "input-worker-1.json").read_text())["pid"], signal.SIGKILL)
        started = time.monotonic()
        _, errors = child.communicate(timeout=60)
        assert time.monotonic() - started < 30
    assert child.returncode == 1
    assert re.search(
        r"input worker 1 \(task 2 on \S+\) was ended by SIGKILL; its log is \S+/input-worker-1\.log\. ", errors
    )
    assert "the same command resumes from it" in errors
    assert jobs.listed(home, jobs.FINISHED)[0].phase == "FAILED"


# Keeps a record of what it has trained on, as a checkpoint does, and goes on behind it.
RESUMING = """
import hashlib, pathlib, sys
import tensorflow as tf
from cerebras_tensorflow.runtime.input_workers import chief as input_workers

tf.compat.v1.disable_eager_execution()
tf.compat.v1.set_random_seed(1)
record, goal = pathlib.Path(sys.argv[1]), int(sys.argv[2])
done = len(record.read_text().split()) if record.exists() else 0
dataset = tf.data.Dataset.range(1000).map(lambda x: tf.sin(tf.cast(x, tf.float32))).shuffle(50).repeat()
dataset = input_workers.distributed(dataset.batch(7, drop_remainder=True).skip(done))
iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
batch = iterator.get_next()
with tf.compat.v1.Session() as session, record.open("a") as file:
    session.run(iterator.initializer)
    while done != goal:
        file.write(hashlib.sha256(session.run(batch).tobytes()).hexdigest() + "\\n")
        file.flush()
        done += 1
        if done == 20: print("twenty", "batches", flush=True)
"""


@pytest.mark.slow
def test_no_batch_is_lost_or_repeated_when_a_worker_is_killed(home: Path, argv, tmp_path: Path) -> None:
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}

    def words(workers: int, record: str, goal: int) -> list[str]:
        options = ("--executor", "embedded", "--input-workers", str(workers))
        return argv("csrun_wse", *options, "python", "-c", RESUMING, str(tmp_path / record), str(goal))

    with subprocess.Popen(words(2, "killed", -1), stdout=subprocess.PIPE, text=True, env=environ) as child:
        assert child.stdout is not None
        while "twenty batches" not in child.stdout.readline():
            assert child.poll() is None
        folder = jobs.job_folder(home, jobs.listed(home)[0].id)
        os.kill(json.loads((folder / "input-worker-0.json").read_text())["pid"], signal.SIGKILL)
        child.communicate(timeout=120)
    assert child.returncode == 1
    goal = len((tmp_path / "killed").read_text().split()) + 20
    subprocess.run(words(1, "killed", goal), check=True, env=environ, timeout=240, capture_output=True)
    subprocess.run(words(0, "unbroken", goal), check=True, env=environ, timeout=240, capture_output=True)
    assert (tmp_path / "killed").read_text() == (tmp_path / "unbroken").read_text()


@pytest.mark.slurm
@pytest.mark.usefixtures("slurm")
def test_under_slurm_the_plan_s_input_workers_serve(launch) -> None:
    alone = result(launch("twice", "--executor", "embedded"))
    layout = ("--total-nodes", "3", "--single-task-nodes", "2", "--tasks-per-node", "2", "--cpus-per-task", "1")
    done = launch("twice", "--executor", "slurm", *layout)
    assert "Input is computed by 2 input worker(s)." in done.stderr
    assert result(done) == alone
