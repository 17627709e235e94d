"""Sparse runs as a user starts them: weight servers give the same bits, and a killed run loses no mask."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("toy_run.py")
RIGL = "sparsity={algorithm: rigl, sparsity: 0.75, update: {freq: 3}, drop_fraction: {type: power, init: .5, beta: .9}}"
STEPS = 24
pytestmark = pytest.mark.slow


def words(model_dir: Path, *settings: str) -> list[str]:
    return [str(SCRIPT), str(model_dir), str(STEPS), RIGL, *settings]


@pytest.fixture
def start(home: Path, argv: Callable[..., list[str]]) -> Callable[..., subprocess.Popen[str]]:
    """Starts a sparse run in a mode or with a store."""

    def begin(kind: str, model_dir: Path, *settings: str) -> subprocess.Popen[str]:
        mode = "pipelined" if kind == "pipelined" else "weight_streaming"
        environ = {**os.environ, "CEREBRAS_EXECUTION_MODE": mode, "TF_CPP_MIN_LOG_LEVEL": "3"}
        command = [sys.executable, *words(model_dir, *settings, f"weight_store={kind}")]
        if kind == "pipelined":
            command = [sys.executable, *words(model_dir, *settings)]
        if kind == "servers":
            launcher = argv("csrun_wse", "--executor", "embedded", "--weight-servers", "2", "python-ws")
            command = [*launcher, *words(model_dir, *settings, "weight_store=servers")]
        return subprocess.Popen(
            command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )

    return begin


def outcome(process: subprocess.Popen[str]) -> list[str]:
    """The lines with the final loss and a digest of all variables, masks and slots among them."""
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output[-3000:]
    lines = {line for line in output.splitlines() if "Loss for final step" in line or line.startswith("weights")}
    assert len(lines) == 2, output
    return sorted(lines)


@pytest.fixture
def unbroken(start: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> list[str]:
    return outcome(start("memory", tmp_path / "unbroken"))


@pytest.mark.parametrize("kind", ["file", "servers"])
def test_a_killed_sparse_run_ends_with_the_bits_of_an_unbroken_one(
    kind: str, start: Callable[..., subprocess.Popen[str]], unbroken: list[str], tmp_path: Path
) -> None:
    with start(kind, tmp_path / kind, "pause_s=0.2") as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "Saving checkpoint at global step 10" in line:
                break
        os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert outcome(start(kind, tmp_path / kind)) == unbroken
