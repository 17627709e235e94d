"""Runs that are killed at random moments, or whose disk is full, end with every bit of an unbroken run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.integration.runs.run_hurt import STORES

SCRIPT = Path(__file__).with_name("run_hurt.py")
SEVERAL_CSX = SCRIPT.with_name("csx_hurt.py")


def hurt(what: str, folder: Path, count: int, script: Path = SCRIPT) -> list[dict[str, int]]:
    """Run a script for all stores. It fails if a run loses a checkpoint or changes a bit."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    words = [sys.executable, str(script), what, "all", str(folder), str(count)]
    done = subprocess.run(words, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-5000:]
    counts = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [count["store"] for count in counts] == list(STORES)
    return counts


@pytest.mark.slow  # CI runs the short one, after the default tests
@pytest.mark.parametrize("count", [2, 40])
def test_runs_killed_at_random_moments_end_with_the_bits_of_an_unbroken_run(tmp_path: Path, count: int) -> None:
    assert all(counts["kills"] == count for counts in hurt("kill", tmp_path, count))


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_is_reported_and_the_next_run_resumes(tmp_path: Path) -> None:
    for counts in hurt("disk", tmp_path, 6):
        assert counts["full disks"] == 6
        assert counts["full disks that a run ended in spite of"] <= 3


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can end a connection of another process")
def test_runs_on_several_csx_that_are_hurt_at_random_moments_end_soon_and_resume_on_another_number(
    tmp_path: Path,
) -> None:
    pytest.importorskip("mpi4py")
    assert all(counts["faults"] == 6 for counts in hurt("all", tmp_path, 6, SEVERAL_CSX))
