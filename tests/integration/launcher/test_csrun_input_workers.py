"""Input workers of a launch: batches do not depend on their number, and dead workers are replaced."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cerebras_tensorflow.system import jobs

CHIEF = """
import hashlib, os, sys, time
import tensorflow as tf
from cerebras_tensorflow.runtime.input_workers import chief as input_workers

tf.compat.v1.logging.set_verbosity(tf.compat.v1.logging.INFO)
tf.compat.v1.disable_eager_execution()
tf.compat.v1.set_random_seed(1)
dataset = tf.data.Dataset.range(103).shuffle(50).repeat({"for ever": None, "many": 10}.get(sys.argv[1], 2))
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
                while len(sys.argv) > 2 and not os.path.exists(sys.argv[2]):
                    time.sleep(0.05)
    except tf.errors.OutOfRangeError:
        print("result", count, digest.hexdigest())
"""


def result(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr[-3000:]
    return next(line for line in done.stdout.splitlines() if line.startswith("result"))


@pytest.fixture
def launch(home: Path, warm_argv: Callable[..., list[str]]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """csrun_wse around the chief above, with time for TensorFlow to load in every process."""
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}

    def run(kind: str, *options: str) -> subprocess.CompletedProcess[str]:
        words = warm_argv("csrun_wse", *options, "python", "-c", CHIEF, kind)
        return subprocess.run(words, capture_output=True, text=True, timeout=240, env=environ)

    return run


def test_batches_do_not_depend_on_the_number_of_workers(launch) -> None:
    alone = result(launch("twice", "--executor", "embedded"))
    assert alone.split()[1] == "30"
    done = launch("twice", "--executor", "embedded", "--input-workers", "2")
    assert "Input is computed by 2 input worker(s)." in done.stderr
    assert result(done) == alone


@pytest.mark.slow
def test_a_dataset_that_calls_python_stays_in_the_chief_and_the_log_says_why(launch) -> None:
    done = launch("python", "--executor", "embedded", "--input-workers", "1")
    assert result(done).split()[1] == "29"
    assert "it calls Python" in done.stderr


@contextmanager
def running(argv: Callable[..., list[str]], *words: str) -> Iterator[subprocess.Popen[str]]:
    """A launch with two input workers."""
    environ = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    command = argv("csrun_wse", "--executor", "embedded", "--input-workers", "2", "python", "-c", *words)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ) as child:
        try:
            yield child
        finally:
            child.kill()


def wait_for_line(child: subprocess.Popen[str], text: str) -> None:
    assert child.stdout is not None
    for line in child.stdout:
        if line.strip() == text:
            return
    raise AssertionError(f"no line {text!r}: {child.stderr.read() if child.stderr else ''}")


def announcement(home: Path, index: int) -> Path:
    return jobs.job_folder(home, jobs.listed(home)[0].id) / f"input-worker-{index}.json"


def announced(home: Path, index: int) -> dict[str, Any]:
    path = announcement(home, index)
    assert path.stat().st_mode & 0o777 == 0o600
    about: dict[str, Any] = json.loads(path.read_text())
    return about


@pytest.fixture(scope="module")
def batches_of_the_chief(warm_python: list[str]) -> str:
    """The result of the chief above without input workers, for "many" batches."""
    return result(subprocess.run([*warm_python, "-c", CHIEF, "many"], capture_output=True, text=True, timeout=120))


# A hung worker is known by its process ID, which a client of `warm_python` has not.
@pytest.mark.parametrize(("number", "words"), [(signal.SIGKILL, "warm_argv"), (signal.SIGSTOP, "argv")])
def test_a_lost_worker_is_replaced_without_changing_batches(
    home: Path, request: pytest.FixtureRequest, batches_of_the_chief: str, tmp_path: Path, number: int, words: str
) -> None:
    go = tmp_path / "go"
    with running(request.getfixturevalue(words), CHIEF, "many", str(go)) as child:
        wait_for_line(child, "five batches")
        os.kill(announced(home, 1)["pid"], number)
        go.touch()
        out, errors = child.communicate(timeout=200)
    assert child.returncode == 0, errors
    assert "continues after batch" in errors
    assert out.strip() == batches_of_the_chief
    assert errors.count(" ended: ") == 1  # the other worker stays, although the chief asked it for nothing meanwhile


@pytest.mark.slow
def test_a_worker_that_dies_four_times_stops_the_launch(home: Path, argv: Callable[..., list[str]]) -> None:
    with running(argv, CHIEF, "for ever") as child:
        wait_for_line(child, "five batches")
        path = announcement(home, 1)
        killed: set[int] = set()
        while child.poll() is None:
            pid = json.loads(path.read_text())["pid"]
            if pid not in killed:
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        errors = child.stderr.read() if child.stderr else ""
    assert child.returncode == 1
    assert len(killed) == 4
    assert re.search(
        r"input worker 1 \(task 2 on \S+\) was ended by SIGKILL for the 4th time within 30 minutes; its log is \S+",
        errors,
    )
    assert "the same command resumes from it" in errors
    assert jobs.listed(home, jobs.FINISHED)[0].phase == "FAILED"


@pytest.mark.slurm
@pytest.mark.usefixtures("slurm")
def test_input_workers_serve_under_slurm(launch) -> None:
    alone = result(launch("twice", "--executor", "embedded"))
    layout = ("--total-nodes", "3", "--single-task-nodes", "2", "--tasks-per-node", "2", "--cpus-per-task", "1")
    done = launch("twice", "--executor", "slurm", *layout)
    assert "Input is computed by 2 input worker(s)." in done.stderr
    assert result(done) == alone
