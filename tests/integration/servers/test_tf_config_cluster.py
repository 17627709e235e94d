"""A TF_CONFIG cluster of real processes: trainers, a parameter server and an evaluator.

Slow, since each task starts TensorFlow; CI runs it. The default tests of a cluster, in one process, are in
tests/unit/estimator/distributed.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from cerebras_tensorflow.estimator.training.early_stopping import read_eval_metrics
from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint
from tests.machines import Machines, machines

SCRIPT = Path(__file__).with_name("cluster_task.py")
TIMEOUT_S = 300
pytestmark = pytest.mark.slow


class Cluster:
    """Starts the tasks of one cluster, and ends them all at the end.

    Args:
        folder: Folder of the run; each task's log is in TASK.log.
        script: Arguments of the script after the folder.
        network: Machines, on which one task of each job runs. None: all run here, on loopback.
        **sizes: Job -> number of its tasks.
    """

    def __init__(self, folder: Path, *script: str, network: Machines | None = None, **sizes: int) -> None:
        self._folder = folder
        self._script = script
        self._network = network
        self._tasks: list[subprocess.Popen[Any]] = []
        if network is not None:
            self.jobs = {job: [f"{network.addresses[job]}:2222"] for job in sizes}
            return
        with ExitStack() as held:
            sockets = {job: [held.enter_context(_bound()) for _ in range(number)] for job, number in sizes.items()}
            self.jobs = {job: [f"127.0.0.1:{one.getsockname()[1]}" for one in ones] for job, ones in sockets.items()}

    def start(self, kind: str, index: int = 0) -> subprocess.Popen[Any]:
        """Start a task."""
        environ = {
            **os.environ,
            "TF_CONFIG": json.dumps({"cluster": self.jobs, "task": {"type": kind, "index": index}}),
        }
        words = [sys.executable, "-W", "ignore", str(SCRIPT), str(self._folder), *self._script]
        with open(self._folder / f"{kind}{index}.log", "ab") as log:
            if self._network is not None:
                task: subprocess.Popen[Any] = self._network.start(kind, *words, env=environ, stdout=log, stderr=log)
            else:
                task = subprocess.Popen(words, env=environ, stdout=log, stderr=log)
        self._tasks.append(task)
        return task

    def log(self, task: str) -> str:
        """Return what a task has written."""
        return (self._folder / f"{task}.log").read_text(errors="replace")

    def wait(self, **tasks: subprocess.Popen[Any]) -> None:
        """Wait for tasks to succeed."""
        for name, task in tasks.items():
            assert task.wait(TIMEOUT_S) == 0, self.log(name)[-5000:]

    def start_trainers(self, *others: tuple[str, int], chief: str = "chief") -> list[subprocess.Popen[Any]]:
        """Start the chief, and the others once it has saved: a worker that comes earlier sleeps for 30 s."""
        first = self.start(chief)
        end_s = time.monotonic() + TIMEOUT_S
        while not (self._folder / "model" / "checkpoint").exists():
            assert first.poll() is None and time.monotonic() < end_s, self.log(f"{chief}0")[-5000:]
            time.sleep(0.1)
        return [first, *(self.start(*other) for other in others)]

    def close(self) -> None:
        """End all tasks."""
        for task in self._tasks:
            task.kill()
            task.wait()


def _bound() -> socket.socket:
    result = socket.socket()
    result.bind(("127.0.0.1", 0))
    return result


@contextmanager
def cluster(folder: Path, *script: str, network: Machines | None = None, **sizes: int) -> Iterator[Cluster]:
    result = Cluster(folder, *script, network=network, **sizes)
    try:
        yield result
    finally:
        result.close()


def report(folder: Path, task: str) -> Any:
    return json.loads((folder / f"{task}.json").read_text())


def test_a_cluster_trains_evaluates_and_exports_though_a_worker_is_killed(tmp_path: Path) -> None:
    (tmp_path / "fragile").write_text("worker1")
    with cluster(tmp_path, "60", chief=1, worker=2, ps=1) as tasks:
        server = tasks.start("ps")
        chief, first, second, evaluator = tasks.start_trainers(("worker", 0), ("worker", 1), ("evaluator", 0))
        assert second.wait(TIMEOUT_S) == -signal.SIGKILL, tasks.log("worker1")[-5000:]
        again = tasks.start("worker", 1)
        tasks.wait(chief0=chief, worker0=first, worker1=again, evaluator0=evaluator)
        assert server.poll() is None, "the parameter server serves until it is killed"
        logs = {name: tasks.log(name) for name in ("chief0", "worker0", "worker1", "evaluator0", "ps0")}
    model_dir = tmp_path / "model"
    newest = tf.train.latest_checkpoint(str(model_dir))
    assert newest is not None
    with open_checkpoint(newest) as reader:
        last = int(reader.read("global_step"))
        assert reader.read("w").shape == (4, 1)
    assert last >= 60
    metrics = read_eval_metrics(str(model_dir / "eval"))
    assert max(metrics) == last
    assert metrics[last]["loss"] < 0.5 * 4, "an untrained model has a loss of about 4"
    assert len(list((model_dir / "export" / "last").iterdir())) == 1
    assert all(report(tmp_path, task)["device"] == "/job:ps/task:0" for task in ("chief0", "worker0", "worker1"))
    assert report(tmp_path, "worker1")["steps"] > 0, "the restarted worker trained"
    assert [name for name in logs if "Saving checkpoints for" in logs[name]] == ["chief0"]
    assert len(list(model_dir.glob("events.*"))) == 1, "only the chief writes summaries"
    assert "not compiled for a simulated system" in logs["chief0"]
    assert not any("has no authentication" in log for log in logs.values())  # all tasks are on this machine


def test_synchronous_replicas_train(tmp_path: Path) -> None:
    with cluster(tmp_path, "20", "sync", chief=1, worker=1, ps=1) as tasks:
        tasks.start("ps")
        chief, worker, evaluator = tasks.start_trainers(("worker", 0), ("evaluator", 0))
        tasks.wait(chief0=chief, worker0=worker, evaluator0=evaluator)
    metrics = read_eval_metrics(str(tmp_path / "model" / "eval"))
    assert max(metrics) >= 20
    assert metrics[max(metrics)]["loss"] < 2


def test_a_master_trains_evaluates_and_exports(tmp_path: Path) -> None:
    with cluster(tmp_path, "40", master=1, worker=1, ps=1) as tasks:
        tasks.start("ps")
        master, worker = tasks.start_trainers(("worker", 0), chief="master")
        tasks.wait(master0=master, worker0=worker)
    assert max(read_eval_metrics(str(tmp_path / "model" / "eval"))) >= 40
    assert list((tmp_path / "model" / "export" / "last").iterdir())


CALLER = """
import socket, sys

try:
    socket.create_connection((sys.argv[1], 2222), timeout=4)
    print("in")
except TimeoutError:
    print("out")
"""


def test_a_cluster_on_three_machines_trains_and_keeps_a_fourth_one_out(tmp_path: Path) -> None:
    with (
        machines("chief", "worker", "ps", "stranger") as network,
        cluster(tmp_path, "20", network=network, chief=1, worker=1, ps=1) as tasks,
    ):
        tasks.start("ps")
        chief, worker = tasks.start_trainers(("worker", 0))
        words = [sys.executable, "-c", CALLER, network.addresses["ps"]]
        answers = {name: network.start(name, *words, stdout=subprocess.PIPE) for name in ("worker", "stranger")}
        assert {name: call.communicate()[0].split() for name, call in answers.items()} == {
            "worker": ["in"],
            "stranger": ["out"],
        }
        tasks.wait(chief0=chief, worker0=worker)
        log = tasks.log("ps0")
    assert log.count("It is open to everybody on the machines in TF_CONFIG") == 1
    assert log.count("port 2222: refused packets") == 1
