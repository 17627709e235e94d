"""Processes that MPI starts: the first CSX exchanges bytes with them, and reports the one that fails."""

from __future__ import annotations

import builtins
import dataclasses
import os
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cerebras_tensorflow.errors import CollectiveError, SettingsError
from cerebras_tensorflow.runtime.collectives import launch, placement
from cerebras_tensorflow.runtime.collectives.interface import Collectives
from cerebras_tensorflow.runtime.collectives.placement import check_mpi
from cerebras_tensorflow.runtime.collectives.shared_files import shared_files
from cerebras_tensorflow.runtime.collectives.signs_of_life import rank_file
from cerebras_tensorflow.runtime.host import stopping
from tests.unit.runtime.collectives.member import numbers

MODULE = "tests.unit.runtime.collectives.member"


def started(folder: Path, behaviour: str, limit_s: float = 60.0) -> Collectives:
    pytest.importorskip("mpi4py")
    (folder / "behaviour").write_text(behaviour)
    return launch.start(3, MODULE, folder, limit_s)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_two_runs_of_one_process_exchange_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sockets = tmp_path / "t"
    for name, age_s in (("cs_csx_killed", 1000), ("cs_csx_starts_now", 0), ("other", 1000)):
        (sockets / name).mkdir(parents=True)
        os.utime(sockets / name, (time.time() - age_s,) * 2)
    monkeypatch.setattr(tempfile, "tempdir", str(sockets))
    tmp_path /= "x" * 100  # longer than the path of a socket may be
    tmp_path.mkdir()
    for _ in range(2):
        ranks = started(tmp_path, "orderly")
        assert numbers(ranks) == [0, 1, 2]
        assert (ranks.bytes_sent, ranks.bytes_received) == (2, 2)
        ranks.close()
        with pytest.raises(CollectiveError, match="the run has ended"):
            ranks.barrier()
    assert oct(os.stat(tmp_path / "secret").st_mode & 0o777) == oct(0o600)
    assert sorted(path.name for path in sockets.iterdir()) == ["cs_csx_starts_now", "other"]


@pytest.mark.parametrize(
    ("behaviour", "limit_s", "reason"),
    [
        ("killed", 60.0, "ended without an error: killed, out of memory, or unable to write"),
        ("full", 60.0, r"failed: OSError: \[Errno 28\] No space left on device"),
        ("stopped", 2.0, "hangs: no sign of life for 2 s"),
        ("stopped", None, "hangs: no sign of life for 4 s"),  # after a signal to stop
    ],
)
def test_a_rank_that_fails_is_named_and_all_ranks_end(
    behaviour: str, limit_s: float | None, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = started(tmp_path, behaviour, limit_s or 60.0)
    assert numbers(ranks) == [0, 1, 2]
    if limit_s is None:
        monkeypatch.setattr(stopping, "ANSWER_LIMIT_S", 4.0)
        monkeypatch.setattr(stopping.requested, "is_set", lambda: True)
    shared = {path for rank in (0, 2) for path in shared_files(rank_file(tmp_path, rank).read_text().split()[1])}
    if behaviour == "stopped":  # only now: on a busy machine the run may end before this test looks at its memory
        os.kill(int(rank_file(tmp_path, 1).read_text().split()[1]), signal.SIGSTOP)
    with pytest.raises(CollectiveError, match=f"rank 1 on {socket.gethostname()} {reason}.*rank-1.log") as error:
        ranks.barrier()
    pids = [int(rank_file(tmp_path, rank).read_text().split()[1]) for rank in (1, 2)]
    assert not any(map(is_running, pids))
    assert (shared or behaviour != "stopped") and not any(map(os.path.exists, shared))
    with pytest.raises(CollectiveError) as again:
        ranks.exchange([np.empty(0, np.uint8)] * 3, [np.empty(0, np.uint8)] * 3)
    assert str(again.value) == str(error.value)


def test_a_stopped_process_that_moves_the_bytes_of_the_first_csx_ends_the_run(tmp_path: Path) -> None:
    ranks = started(tmp_path, "exchanging", 2.0)
    assert numbers(ranks) == [0, 1, 2]
    os.kill(int(rank_file(tmp_path, 0).read_text().split()[1]), signal.SIGSTOP)
    with pytest.raises(CollectiveError, match=r"rank 0 on .* hangs: no sign of life for 2 s.*mpi\.log"):
        ranks.barrier()


def test_processes_that_hang_in_the_start_of_mpi_are_started_again_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, starts = launch.mpi_command, []

    def command(size: int, folder: Path) -> placement.MpiCommand:
        how = real(size, folder)
        return dataclasses.replace(how, words=("sh", "-c", "while :; do sleep 1; done"))

    def popen(words: tuple[str, ...], **options: Any) -> subprocess.Popen[bytes]:
        if words[0] != "sh":  # the version of mpiexec is asked for, too
            return run(words, **options)
        starts.append(words)
        if behaviour == "once" and len(starts) == 2:
            monkeypatch.setattr(launch, "_START_LIMIT_S", 60.0)
            words = (*real(3, tmp_path).words, *words[3:])
        return run(words, **options)

    run = subprocess.Popen
    monkeypatch.setattr(launch, "mpi_command", command)
    monkeypatch.setattr(launch.subprocess, "Popen", popen)
    for behaviour in ("once", "always"):
        starts.clear()
        monkeypatch.setattr(launch, "_START_LIMIT_S", 0.5)
        if behaviour == "once":
            ranks = started(tmp_path, "orderly")
            assert numbers(ranks) == [0, 1, 2]
            ranks.close()
        else:
            with pytest.raises(
                CollectiveError, match=r"the processes of 3 CSX did not start on \S+; .*mpi\.log: it is empty"
            ):
                started(tmp_path, "orderly")
        assert len(starts) == 2


def test_without_mpi4py_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_mpi(name: str, *rest: Any) -> Any:
        if name == "mpi4py":
            raise ImportError("No module named 'mpi4py'")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_mpi)
    with pytest.raises(SettingsError, match=r"pip install cerebras_tensorflow\[mpi\], or set num_csx to 1"):
        launch.start(2, MODULE, tmp_path, 60.0)


def test_a_missing_mpi_library_is_told_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mpi4py")
    check_mpi()
    monkeypatch.setenv("MPI4PY_LIBMPI", "/nowhere/libmpi.so")
    with pytest.raises(SettingsError, match=r"cannot load an MPI library.*pip install cerebras_tensorflow\[mpi\]"):
        check_mpi()


def test_names_of_nodes_are_what_a_scontrol_that_succeeds_prints(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scontrol = tmp_path / "scontrol"
    for path in (scontrol, tmp_path / "srun"):
        path.touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node[1-2]")
    for status, expected in ((0, ("node1", "node2")), (1, ())):
        scontrol.write_text(f"#!/bin/sh\necho 'scontrol: warning: old' >&2\necho node1\necho node2\nexit {status}\n")
        assert placement.slurm_nodes() == expected


def test_slurm_starts_the_ranks_on_the_nodes_of_the_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    answers = {"scontrol": "a\nb\nc\n", "srun": "MPI plugin types are...\n\tnone\n\tpmi2\n"}

    def ran(command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 0, answers.get(command[0], "HYDRA"), "")

    monkeypatch.setattr(placement, "_ran", ran)
    monkeypatch.setattr(placement.shutil, "which", lambda name: name)
    for name, value in (("SLURM_JOB_ID", "7"), ("SLURM_JOB_NODELIST", "[a-c]"), ("SLURM_NTASKS", "9")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLURMD_NODENAME", "b")
    assert placement.mpi_command(4, tmp_path).words[:2] == ("srun", "--mpi=none"), "connections of our own"
    monkeypatch.setenv("CEREBRAS_CSX_NETWORK", "mpi")
    command = placement.mpi_command(4, tmp_path)
    assert command.nodes == ("b", "b", "a", "c")
    assert Path(command.environment["SLURM_HOSTFILE"]).read_text() == "b\nb\na\nc\n"
    assert command.words[:2] == ("srun", "--mpi=pmi2") and "SLURM_NTASKS" not in command.environment
    answers["srun"] = "none"
    assert placement.mpi_command(2, tmp_path).nodes == (), "without a plugin, all ranks run on this node"
