"""What a new user meets first: versions, typos, closed pipes, TensorFlow's log lines."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from cerebras_tensorflow.system import jobs
from cerebras_tensorflow.version import __version__

TENSORFLOW = """
import tensorflow as tf, os
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    session.run(tf.constant(1.0) + 2)
os.write(2, b"a real error\\n")
"""


@pytest.mark.parametrize("command", ["csrun_wse", "csrun_cpu", "cs_input_analyzer", "cs", "cs-system", "csctl"])
def test_every_command_has_a_version(run, command: str) -> None:
    done = run(command, "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{command} {__version__}\n", "")


@pytest.mark.parametrize(
    ("command", "words", "meant"),
    [
        ("csrun_wse", ["--dry-rum", "python"], "did you mean --dry-run?"),
        ("csrun_wse", ["--executor", "slrum", "python"], "did you mean 'slurm'?"),
        ("csrun_wse", ["pyhton-ws", "run.py"], "did you mean 'python-ws'?"),
        ("csrun_wse", ["zzqx"], "zzqx: command not found"),
        ("csrun_wse", ["--bogus", "2", "python", "run.py"], "2: command not found (the option --bogus is unknown"),
        ("csrun_wse", ["python-ws", "-u", "zzqx.py"], "python-ws: there is no file 'zzqx.py'"),
        ("csrun_cpu", ["pyhton-ws", "run.py"], "did you mean 'python-ws'?"),
        ("cs-system", ["lsit"], "did you mean 'list'?"),
        ("cs-system", ["create", "lab", "--mode", "weight-streeming"], "did you mean 'weight-streaming'?"),
        ("csctl", ["get", "jbos"], "did you mean 'jobs'?"),
        ("csctl", ["get", "jobs", "--all-sates"], "did you mean '--all-states'?"),
        ("cs", ["-c", "sytem show"], "did you mean 'system show'?"),
    ],
)
def test_a_typo_gets_a_suggestion_and_queues_nothing(
    run, home: Path, command: str, words: list[str], meant: str
) -> None:
    done = run(command, *words)
    assert done.returncode != 0
    assert meant in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert not (home / "jobs.sqlite").exists() or not jobs.listed(home, (*jobs.LIVE, *jobs.FINISHED))


@pytest.mark.parametrize(
    "words", [["csctl", "get", "jobs", "--all_states"], ["cs-system", "serve", "--tls_cert=x", "-h"]]
)
def test_options_may_have_underscores(run, words: list[str]) -> None:
    assert run(*words).returncode == 0


@pytest.mark.parametrize(
    "words", [["csrun_wse", "--help"], ["csctl", "get", "jobs"], ["cs-system", "list"], ["cs", "-c", "help"]]
)
def test_a_closed_output_pipe_causes_no_traceback(home: Path, argv: Callable[..., list[str]], words: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(argv(*words), stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writer)
    assert done.stderr == ""
    assert done.returncode in (0, 141)


@pytest.mark.parametrize("command", ["csrun_wse", "csrun_cpu"])
def test_tensorflow_is_quiet_in_a_launch_even_if_imported_first(
    run, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL", raising=False)
    done = run(
        command,
        "--executor",
        "embedded",
        *(["--alloc-node=False"] * (command == "csrun_cpu")),
        "python-ws",
        "-c",
        TENSORFLOW,
    )
    lines = [line for line in done.stderr.splitlines() if not line.startswith(("csrun: ", "srun: "))]
    assert lines == ["a real error"]
