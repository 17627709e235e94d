"""A disk that fails under the files that a run can do without costs no run, and each problem is reported once."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cerebras_tensorflow.saver.checkpoint_reader import checkpoints_newest_first

SCRIPT = Path(__file__).with_name("toy_run.py")
OPTIONAL = ("tfcs_", "events.out", "/trace", "/performance", "graph.pbtxt", "report.html")
WARNINGS = (
    "the compiled program cannot be saved",
    "The event file in {model_dir} cannot be written",
    "The event file in {model_dir}/train cannot be written",
    "The trace of step 3",
    "performance.json could not be written",
    "The graph could not be written",
    "{model_dir}/report.html could not be written",
)


@pytest.mark.parametrize(
    "number",
    [
        errno.ENOSPC,
        *(pytest.param(number, marks=pytest.mark.slow) for number in (errno.EIO, errno.EACCES, errno.EROFS)),
    ],
    ids=errno.errorcode.get,
)
def test_failing_optional_files_never_lose_a_run(home: Path, shim: Path, tmp_path: Path, number: int) -> None:
    faults = {"LD_PRELOAD": str(shim), "FAULT_MATCH": ":".join(OPTIONAL), "FAULT_ERRNO": str(number)}
    environ = {**os.environ, **faults, "TF_CPP_MIN_LOG_LEVEL": "3", "CEREBRAS_TRACE_STEP": "3"}
    environ["CEREBRAS_REPORT"] = "1"
    command = [sys.executable, str(SCRIPT), str(tmp_path / "model_dir"), "12"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert checkpoints_newest_first(tmp_path / "model_dir")[0].endswith("-12")
    for text in WARNINGS:
        assert done.stderr.count(text.format(model_dir=tmp_path / "model_dir")) == 1, f"{text}: {done.stderr}"
