"""A full or failing disk under CEREBRAS_HOME loses no launch, and each problem is reported once."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cerebras_tensorflow.system import jobs

SAVING = """
import os, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
(folder / "started").touch()
print("step 1", flush=True)
print("a warning", file=sys.stderr, flush=True)
(folder / "checkpoint").write_text("saved")
sys.exit(3)
"""
WRITES = ("systems.sqlite", "jobs.sqlite", "/jobs", ".alive", "output.log", "task-0", "/done")
AT_START = ("systems.sqlite", "jobs.sqlite", "/jobs", ".alive")
"""Files written before anything runs. Without permission to write them, a launch is refused and nothing is lost."""


@pytest.fixture
def launch(home, argv: Callable[..., list[str]], tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Launches a command that saves, with faults set by the environment."""

    def run(**settings: str) -> subprocess.CompletedProcess[str]:
        words = argv("csrun_wse", "--executor", "embedded", "python", "-c", SAVING, str(tmp_path))
        return subprocess.run(words, env={**os.environ, **settings}, capture_output=True, text=True, timeout=60)

    return run


@pytest.mark.parametrize(
    "number",
    [
        errno.ENOSPC,
        errno.EACCES,
        pytest.param(errno.EIO, marks=pytest.mark.slow),
        pytest.param(errno.EROFS, marks=pytest.mark.slow),
    ],
    ids=errno.errorcode.get,
)
@pytest.mark.parametrize("match", WRITES)
@pytest.mark.parametrize("when", ["fresh", "start", "running"])
def test_a_failing_write_never_loses_a_run(
    launch, shim: Path, home: Path, tmp_path: Path, match: str, number: int, when: str
) -> None:
    if when != "fresh":
        assert launch().returncode == 3
        for name in ("started", "checkpoint"):
            (tmp_path / name).unlink()
    faults = {"LD_PRELOAD": str(shim), "FAULT_MATCH": match, "FAULT_ERRNO": str(number)}
    if when == "running":
        faults["FAULT_WHEN"] = str(tmp_path / "started")
    done = launch(**faults)
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith(("csrun: ", "csrun_wse: error: "))]
    reports = [
        line for line in lines if "cannot" in line or "not recorded" in line or "lacks" in line or "no log" in line
    ]
    refusals = (errno.EACCES, errno.EROFS)
    if done.returncode == 1:
        assert match in AT_START and number in refusals and when != "running"
        assert len(lines) == 1 and "Set CEREBRAS_HOME" in lines[0]
        assert not (tmp_path / "started").exists()
        return
    assert done.returncode == 3
    assert (tmp_path / "checkpoint").read_text() == "saved"
    assert done.stdout.endswith("step 1\n")
    assert "a warning" in done.stderr
    # At most three problems (log, task record, job record), each reported once.
    assert len(set(reports)) == len(reports) <= 3, reports


def test_a_full_standard_output_loses_no_run(home: Path, argv: Callable[..., list[str]], tmp_path: Path) -> None:
    words = argv("csrun_wse", "--executor", "embedded", "python", "-c", SAVING, str(tmp_path))
    with open("/dev/full", "wb") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 3
    assert (tmp_path / "checkpoint").exists()
    assert "standard output cannot be written: No space left on device" in done.stderr
    assert jobs.listed(home, jobs.FINISHED)[0].phase == "FAILED"


@pytest.fixture
def full_home(home: Path) -> Iterator[Path]:
    """A home on a small file system of its own."""
    home.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", home], capture_output=True)
    if mounted.returncode:
        pytest.skip("needs the right to mount a file system")
    yield home
    subprocess.run(["umount", "-l", home], check=True)


@pytest.mark.parametrize(
    ("is_fresh", "free_bytes"),
    [(True, 0), pytest.param(True, 36 << 10, id="room for the tables of the systems"), (False, 0)],
)
def test_a_full_file_system_loses_no_run(
    launch, full_home: Path, tmp_path: Path, is_fresh: bool, free_bytes: int
) -> None:
    if not is_fresh:
        assert launch().returncode == 3
        (tmp_path / "checkpoint").unlink()
    with open(full_home / "ballast", "wb", buffering=0) as ballast, pytest.raises(OSError, match="No space"):
        while True:
            ballast.write(bytes(4096))
    os.truncate(full_home / "ballast", (full_home / "ballast").stat().st_size - free_bytes)
    done = launch()
    assert done.returncode == 3, done.stderr
    assert (tmp_path / "checkpoint").exists()
    assert "Traceback" not in done.stderr
