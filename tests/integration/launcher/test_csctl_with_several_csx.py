"""A job on several CSX: csctl shows its systems, and cancel ends all its processes after one save."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from cerebras_tensorflow.saver.checkpoint_reader import checkpoints_newest_first
from cerebras_tensorflow.system import jobs, registry
from tests.conftest import ROOT

SCRIPT = str(ROOT / "tests/integration/runs/toy_run.py")


@pytest.mark.slow
def test_cancel_ends_all_processes_of_a_job_after_one_save(
    home: Path, argv: Callable[..., list[str]], run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    pytest.importorskip("mpi4py")
    for number in range(3):
        registry.create(home, f"lab{number}", f"10.0.0.{number + 1}", "weight_streaming")
    model_dir = tmp_path / "model"
    settings = ("cs_ip=10.0.0.1", "epochs=100000", "save_every=100000", "weight_store=memory")
    words = argv("csrun_wse", "--executor", "embedded", "--num_csx", "2", "python-ws", SCRIPT, str(model_dir))
    command = [*words, "1000000", *settings]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as child:
        try:
            assert child.stdout is not None
            assert any("global_step = 10" in line for line in child.stdout)
            (job,) = jobs.listed(home)
            shown = json.loads(run("csctl", "get", "job", job.id, "-o", "json").stdout)
            assert shown["status"]["systems"] == ["lab0", "lab1"]
            assert "lab0,lab1" in run("csctl", "get", "jobs").stdout.replace(", ", ",")
            ranks = [int(path.read_text().split()[1]) for path in (model_dir / "csx").glob("rank-?")]
            assert ranks
            assert run("csctl", "cancel", "job", job.id).returncode == 0
            lines = child.stdout.readlines()
            assert child.wait(60) == 143
        finally:
            child.kill()
    assert not any(map(psutil.pid_exists, ranks))
    assert sum("Saving checkpoint" in line for line in lines) == 1
    assert len(checkpoints_newest_first(str(model_dir))) == 2  # of step 0, and of the last step
    assert jobs.listed(home, jobs.FINISHED)[0].phase == "CANCELLED"
