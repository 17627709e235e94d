"""Every implementation of Collectives passes the suite: threads of one process, our own connections, ranks of MPI."""

from __future__ import annotations

import builtins
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cerebras_tensorflow.errors import CollectiveError, SettingsError
from cerebras_tensorflow.runtime.collectives import tcp
from cerebras_tensorflow.runtime.collectives.in_process import make_group
from cerebras_tensorflow.runtime.collectives.interface import Collectives
from cerebras_tensorflow.runtime.collectives.mpi import join_world
from cerebras_tensorflow.runtime.collectives.placement import mpi_command
from cerebras_tensorflow.runtime.host import links
from cerebras_tensorflow.runtime.host.announcement import read_announcement
from tests.unit.runtime.collectives.suite import FAILING, JOINED, LIMIT_S, MPI_ONLY, SHARED, SHORT_LIMIT_S, SIZE

ROOT = Path(__file__).parents[4]
SECRET = b"the secret of the run"


Group = Callable[[float], list[Callable[[], Collectives]]]
"""Returns, for a time limit, how each rank joins a new group."""


@pytest.fixture(params=["in_process", "tcp"])
def group(request: pytest.FixtureRequest, tmp_path: Path) -> Group:
    def in_process(limit_s: float) -> list[Callable[[], Collectives]]:
        return [lambda ranks=ranks: ranks for ranks in make_group(SIZE, limit_s)]  # type: ignore[misc]

    def by_tcp(limit_s: float) -> list[Callable[[], Collectives]]:
        return [partial(tcp.join, rank, SIZE, tmp_path, SECRET, limit_s) for rank in range(SIZE)]

    return in_process if request.param == "in_process" else by_tcp


def run_threads(check: Callable[[Collectives], None], joins: list[Callable[[], Collectives]]) -> None:
    """Call a check in a thread for each rank; raise the first error."""
    errors: list[BaseException] = []

    def call(join: Callable[[], Collectives]) -> None:
        try:
            ranks = join()
            try:
                check(ranks)
                done.wait(LIMIT_S)  # the others may still wait for this rank
            except BaseException as error:
                ranks.abort(repr(error))
                raise
            finally:
                ranks.close()
        except BaseException as error:  # noqa: BLE001 - raised in the test's thread
            errors.append(error)

    done = threading.Barrier(SIZE)
    threads = [threading.Thread(target=call, args=(join,)) for join in joins]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def run_mpi(name: str) -> subprocess.CompletedProcess[str]:
    """Run a check of the suite in processes that MPI starts."""
    pytest.importorskip("mpi4py")
    try:
        how = mpi_command(SIZE, ROOT)
    except SettingsError as error:
        pytest.skip(str(error))
    command = [*how.words, sys.executable, "-m", "tests.unit.runtime.collectives.suite", name]
    start = partial(subprocess.run, command, cwd=ROOT, env=how.environment, capture_output=True, text=True)
    try:
        return start(timeout=60)
    except subprocess.TimeoutExpired as expired:
        # MPICH may hang in MPI_Init: launch.start then starts the processes again.
        if JOINED in (expired.stdout or b"").decode():
            raise
        return start(timeout=120)


@pytest.mark.parametrize("name", SHARED)
def test_a_group_passes_the_shared_suite(name: str, group: Group) -> None:
    run_threads(SHARED[name], group(LIMIT_S))


@pytest.mark.parametrize("name", FAILING)
def test_a_group_reports_a_failing_rank(name: str, group: Group) -> None:
    run_threads(FAILING[name], group(SHORT_LIMIT_S))


def test_an_abort_reaches_the_ranks_that_wait(group: Group) -> None:
    def check(ranks: Collectives) -> None:
        if ranks.rank == 1:
            ranks.abort("the disk is full")
        else:
            with pytest.raises(CollectiveError, match=r"rank 1 .*failed: the disk is full"):
                ranks.barrier()

    run_threads(check, group(LIMIT_S))


def test_a_rank_that_left_is_named(group: Group) -> None:
    def check(ranks: Collectives) -> None:
        ranks.barrier()
        if ranks.rank == 2:
            ranks.close()
        else:
            with pytest.raises(CollectiveError, match=r"rank 2 (has left|.*lost its connection to rank \d)"):
                ranks.barrier()

    run_threads(check, group(LIMIT_S))


@pytest.mark.parametrize("loser", [b"rank 1 calls 0", b"rank 0 answers 1"])
def test_a_rank_that_loses_a_connection_while_the_ranks_meet_calls_again(
    loser: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prove = links.prove
    lost: list[socket.socket] = []

    def losing(link: socket.socket, secret: bytes, own: bytes, theirs: bytes, end: float) -> bool:
        is_known = prove(link, secret, own, theirs, end)
        if own == loser and not lost:
            lost.append(link)
            raise links.LinkEndedError("it has ended")
        return is_known

    keep = tcp._Meeting._keep
    kept: list[tuple[int, int]] = []

    def keeping(meeting: Any, rank: int, *words: Any) -> None:
        keep(meeting, rank, *words)
        kept.append((meeting._rank, rank))

    def join(rank: int) -> Collectives:
        while rank == SIZE - 1 and (1, 0) not in kept:  # rank 0 waits for this rank, so it listens until then
            time.sleep(0.01)
        return tcp.join(rank, SIZE, tmp_path, SECRET)

    monkeypatch.setattr(links, "prove", losing)
    monkeypatch.setattr(tcp._Meeting, "_keep", keeping)
    run_threads(lambda ranks: ranks.barrier(), [partial(join, rank) for rank in range(SIZE)])


def test_nobody_joins_without_the_secret_and_nothing_listens_after_the_start(tmp_path: Path) -> None:
    ranks: list[Collectives] = []
    first = threading.Thread(target=lambda: ranks.append(tcp.join(0, 2, tmp_path, SECRET)))
    first.start()
    while (address := read_announcement(tcp.address_file(tmp_path, 0))) is None:
        time.sleep(0.01)
    place = address["host"], address["port"]
    strangers = [socket.create_connection(place) for _ in range(3)]  # one of them stays silent
    for link, said in zip(
        strangers, (b"GET / HTTP/1.0\r\n\r\n" * 9, (1).to_bytes(4, "little") + bytes(64)), strict=False
    ):
        link.sendall(said)
        link.settimeout(LIMIT_S)
        with suppress(ConnectionResetError):
            while link.recv(1 << 10):
                pass
    with pytest.raises(
        CollectiveError, match=r"(does not know the secret of this run|cannot connect to rank 0: .*closed)"
    ):
        tcp.join(1, 2, tmp_path, b"another secret")
    assert not ranks
    second = tcp.join(1, 2, tmp_path, SECRET)
    first.join()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(place)
    barrier = threading.Thread(target=ranks[0].barrier)
    barrier.start()
    second.barrier()
    barrier.join()
    for one in (*strangers, *ranks, second):
        one.close()


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
    assert "Traceback" not in result.stderr, result.stderr


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
