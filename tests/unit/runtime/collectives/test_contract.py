"""Every implementation of Collectives passes the suite: threads of one process, and ranks of MPI."""

from __future__ import annotations

import builtins
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cerebras_tensorflow.errors import CollectiveError, SettingsError
from cerebras_tensorflow.runtime.collectives.in_process import make_group
from cerebras_tensorflow.runtime.collectives.interface import Collectives
from cerebras_tensorflow.runtime.collectives.mpi import join_world
from tests.unit.runtime.collectives.suite import FAILING, LIMIT_S, MPI_ONLY, SHARED, SHORT_LIMIT_S, SIZE

ROOT = Path(__file__).parents[4]
MPIEXEC = Path(sys.executable).with_name("mpiexec")


def run_threads(check: Callable[[Collectives], None], limit_s: float) -> None:
    """Call a check in a thread for each rank; raise the first error."""
    errors: list[BaseException] = []

    def call(ranks: Collectives) -> None:
        try:
            check(ranks)
        except BaseException as error:  # noqa: BLE001 - raised in the test's thread
            errors.append(error)
            ranks.abort(repr(error))

    threads = [threading.Thread(target=call, args=(ranks,)) for ranks in make_group(SIZE, limit_s)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def run_mpi(name: str) -> subprocess.CompletedProcess[str]:
    """Run a check of the suite in processes that MPI starts."""
    if not MPIEXEC.exists() and shutil.which("mpiexec") is None:
        pytest.skip("needs mpiexec")
    library = Path(pytest.importorskip("mpi4py").__file__).parents[3] / "libmpi.so.12"
    # mpi4py looks in the folder of the interpreter. Where a virtual environment borrows packages, it is beside these.
    environ = {**os.environ, "MPI4PY_LIBMPI": str(library)} if library.exists() else {**os.environ}
    words = [str(MPIEXEC if MPIEXEC.exists() else "mpiexec"), "-n", str(SIZE), sys.executable]
    command = [*words, "-m", "tests.unit.runtime.collectives.suite", name]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("name", SHARED)
def test_threads_pass_the_shared_suite(name: str) -> None:
    run_threads(SHARED[name], LIMIT_S)


@pytest.mark.parametrize("name", FAILING)
def test_threads_report_a_failing_rank(name: str) -> None:
    run_threads(FAILING[name], SHORT_LIMIT_S)


def test_an_abort_reaches_the_ranks_that_wait() -> None:
    def check(ranks: Collectives) -> None:
        if ranks.rank == 1:
            ranks.abort("the disk is full")
        else:
            with pytest.raises(CollectiveError, match="rank 1 failed: the disk is full"):
                ranks.barrier()

    run_threads(check, LIMIT_S)


def test_a_rank_that_left_is_named() -> None:
    def check(ranks: Collectives) -> None:
        ranks.barrier()
        if ranks.rank == 2:
            ranks.close()
        else:
            with pytest.raises(CollectiveError, match="rank 2 has left"):
                ranks.barrier()

    run_threads(check, LIMIT_S)


def test_every_rank_needs_a_part() -> None:
    (ranks,) = make_group(1)
    with pytest.raises(ValueError, match="2 and 1 parts for 1 ranks"):
        ranks.exchange([np.zeros(1, np.uint8)] * 2, [np.zeros(1, np.uint8)])


def test_mpi_passes_the_shared_suite() -> None:
    result = run_mpi("shared")
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("name", [*FAILING, *MPI_ONLY])
def test_mpi_that_fails(name: str) -> None:
    result = run_mpi(name)
    assert result.stdout.count("passed") >= 1, result.stderr
    assert "Error" not in result.stderr, result.stderr


def test_an_abort_ends_all_processes_with_one_message() -> None:
    result = run_mpi("abort")
    assert result.returncode != 0
    assert "failed: the disk is full" in result.stderr
    assert "not reached" not in result.stdout


def test_without_mpi4py_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_mpi(name: str, *rest: Any) -> Any:
        if name == "mpi4py":
            raise ImportError("No module named 'mpi4py'")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_mpi)
    with pytest.raises(SettingsError, match=r"pip install cerebras_tensorflow\[mpi\]"):
        join_world()
