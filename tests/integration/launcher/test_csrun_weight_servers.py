"""Weight servers of a launch: weights do not depend on where they are held, and a dead server stops the launch."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from cerebras_tensorflow.system import jobs
from tests.conftest import ROOT

SCRIPT = str(ROOT / "tests/integration/runs/toy_run.py")
Words = Callable[..., list[str]]


@pytest.fixture
def words(home: Path, warm_argv: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch) -> Words:
    """The words of a launch of the toy script."""
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    def launch(options: tuple[str, ...], model_dir: Path, steps: int, *settings: str) -> list[str]:
        return warm_argv("csrun_wse", *options, "python-ws", SCRIPT, str(model_dir), str(steps), *settings)

    return launch


def outcome(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The final loss and the first weights, in hexadecimal."""
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    lines = [*done.stdout.splitlines(), *done.stderr.splitlines()]
    outcome_lines = sorted({line for line in lines if "Loss for final step" in line or line.startswith("weights")})
    assert len(outcome_lines) == 2
    return outcome_lines


def finished(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_weights_do_not_depend_on_where_they_are_held(words: Words, tmp_path: Path) -> None:
    alone = finished(words(("--executor", "embedded"), tmp_path / "alone", 12, "weight_store=memory"))
    options = ("--executor", "embedded", "--weight-servers", "2")
    done = finished(words(options, tmp_path / "servers", 12, "weight_store=servers"))
    assert "The weights are held by 2 weight server(s)." in done.stdout + done.stderr
    assert outcome(done) == outcome(alone)


@pytest.mark.slow
def test_a_dead_weight_server_stops_the_launch_and_the_next_one_resumes(
    words: Words, home: Path, tmp_path: Path
) -> None:
    options = ("--executor", "embedded", "--weight-servers", "2")
    command = words(options, tmp_path / "model", 100_000, "weight_store=servers", "epochs=100000", "save_every=10")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
        assert child.stdout is not None
        for line in child.stdout:
            if "Saving checkpoint at global step 20" in line:
                break
        (server, *_) = [
            process
            for process in psutil.Process(child.pid).children(recursive=True)
            if "cerebras_tensorflow.runtime.weight_store.server" in process.cmdline()
        ]
        os.kill(server.pid, signal.SIGKILL)
        output, _ = child.communicate(timeout=120)
    assert child.returncode == 1, output[-3000:]
    message = r"weight server [01] \(task [12] on \S+\) was ended by SIGKILL; its log is \S+\.log\. .*resumes from it"
    assert re.search(message, output), output[-3000:]
    assert jobs.listed(home, jobs.FINISHED)[0].phase == "FAILED"
    again = finished(words(options, tmp_path / "model", 60, "weight_store=servers", "epochs=100000"))
    assert again.returncode == 0, again.stderr[-3000:]
    assert "model-ckpt-" in again.stderr + again.stdout


@pytest.mark.slurm
@pytest.mark.usefixtures("slurm")
def test_under_slurm_the_second_single_task_node_holds_the_weights(words: Words, tmp_path: Path) -> None:
    alone = finished(words(("--executor", "embedded"), tmp_path / "alone", 12, "weight_store=memory"))
    sizes = ("--total-nodes", "3", "--single-task-nodes", "2", "--tasks-per-node", "1", "--cpus-per-task", "1")
    done = finished(words(("--executor", "slurm", *sizes), tmp_path / "servers", 12, "weight_store=servers"))
    assert "The weights are held by 1 weight server(s)." in done.stdout + done.stderr
    assert outcome(done) == outcome(alone)
