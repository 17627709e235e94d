"""Connections between CSX: who may connect, and what happens when a CSX ends."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

from cerebras_tensorflow.errors import CollectiveError, StoreError
from cerebras_tensorflow.runtime.csx import peers
from cerebras_tensorflow.runtime.csx.peers import Peers, Request
from cerebras_tensorflow.runtime.host import links
from cerebras_tensorflow.runtime.weight_store.buffers import Buffers, Bytes

SECRET = b"of the run"
FAILS, WAITS, BREAKS, RAISES = 7, 8, 9, 10


def doubled(request: Request, data: Bytes) -> tuple[int, Iterable[Bytes]]:
    if request.kind == FAILS:
        raise StoreError("the disk is full")
    if request.kind == WAITS:
        threading.Event().wait(30)
    if request.kind == RAISES:
        raise MemoryError("of 3 TB")
    if request.kind == BREAKS:
        return 4000, broken()
    return 2 * data.nbytes, (data, data)


def broken() -> Iterator[Bytes]:
    yield np.zeros(3000, np.uint8)
    raise OSError(errno.EIO, "Input/output error", "weights.bin")


@pytest.fixture
def pair(tmp_path: Path) -> Iterable[tuple[Peers, Peers]]:
    both = Peers(0, tmp_path, SECRET, doubled, counted=[1]), Peers(1, tmp_path, SECRET, doubled, counted=[1])
    yield both
    for one in both:
        one.close()


def test_requests_are_answered_and_counted_on_both_sides(pair: tuple[Peers, Peers]) -> None:
    data = np.arange(100_000, dtype=np.int64).view(np.uint8)
    answer = pair[0].ask(1, Request(1), data)
    np.testing.assert_array_equal(answer, np.concatenate([data, data]))
    pair[0].ask(1, Request(2), data)
    pieces = [piece.copy() for piece in pair[0].stream(1, Request(3), 1000)]
    assert not pieces
    assert (pair[0].bytes_sent, pair[0].bytes_received) == (data.nbytes, 2 * data.nbytes)
    assert pair[0].ask(1, Request(1)).size == 0  # the owner has counted the answers before
    assert (pair[1].bytes_sent, pair[1].bytes_received) == (2 * data.nbytes, data.nbytes)


def test_a_request_that_does_not_fit_into_memory_is_refused_before_memory_is_taken(
    pair: tuple[Peers, Peers], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    take = Buffers.take

    def recorded(self: Buffers, num_bytes: int) -> Bytes:
        taken.append(num_bytes)
        return take(self, num_bytes)

    monkeypatch.setattr(Buffers, "take", recorded)
    monkeypatch.setattr(peers, "free_memory_bytes", lambda: 1 << 20)
    monkeypatch.setattr(peers, "_CHECKED_FROM_BYTES", 2 << 20)
    with pytest.raises(CollectiveError, match=r"rank 1 on an unknown host failed: .* does not fit into free memory"):
        pair[0].ask(1, Request(2), np.zeros(2 << 20, np.uint8))
    assert max(taken) < 2 << 20
    pair[0].ask(1, Request(2), np.zeros(1 << 20, np.uint8))


def test_an_error_of_the_owner_names_its_rank_and_the_connection_goes_on(pair: tuple[Peers, Peers]) -> None:
    for _ in range(2):
        with pytest.raises(CollectiveError, match="rank 1 on an unknown host failed: the disk is full"):
            pair[0].ask(1, Request(FAILS))
    assert pair[0].ask(1, Request(1), np.zeros(3, np.uint8)).size == 6


def test_every_error_of_an_answer_or_of_a_part_reaches_the_caller(pair: tuple[Peers, Peers]) -> None:
    with pytest.raises(CollectiveError, match="rank 1 on an unknown host failed: MemoryError: of 3 TB"):
        pair[0].ask(1, Request(RAISES))
    with pytest.raises(
        CollectiveError, match=r"rank 1 on an unknown host failed: OSError.*Input/output error: 'weights.bin'"
    ):
        pair[0].ask(1, Request(BREAKS))
    pieces = pair[0].stream(1, Request(BREAKS), 1000)
    with pytest.raises(CollectiveError, match=r"weights\.bin"):
        list(pieces)
    assert pair[0].ask(1, Request(1), np.zeros(3, np.uint8)).size == 6


def test_the_error_of_the_run_ends_a_request_that_gets_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "CHECK_S", 0.05)
    is_lost = threading.Event()

    def check() -> None:
        if is_lost.is_set():
            raise CollectiveError("rank 1 on host does not answer")

    first, other = Peers(0, tmp_path, SECRET, doubled, check), Peers(1, tmp_path, SECRET, doubled)
    losing = threading.Timer(0.2, is_lost.set)
    losing.start()
    with pytest.raises(CollectiveError, match="does not answer"):
        first.ask(1, Request(WAITS))
    losing.join()
    for one in (first, other):
        one.close()


def test_an_owner_that_ends_fails_the_request_that_waits(pair: tuple[Peers, Peers]) -> None:
    ending = threading.Timer(0.2, pair[1].close)
    ending.start()
    with pytest.raises(CollectiveError, match=r"rank 1 on .* lost its connection to rank 0: .*Its log is .*rank-1.log"):
        pair[0].ask(1, Request(WAITS))
    ending.join()


def test_the_error_of_the_run_comes_before_that_of_the_connection(tmp_path: Path) -> None:
    def check() -> None:
        raise CollectiveError("rank 1 on host ended without an error")

    first, other = Peers(0, tmp_path, SECRET, doubled, check), Peers(1, tmp_path, SECRET, doubled)
    first.ask(1, Request(1))
    other.close()
    with pytest.raises(CollectiveError, match="ended without an error"):
        first.ask(1, Request(1))
    first.close()


def test_a_caller_without_the_secret_gets_nothing(tmp_path: Path) -> None:
    answered: list[Request] = []

    def answer(request: Request, data: Bytes) -> tuple[int, Iterable[Bytes]]:
        answered.append(request)
        return 0, ()

    owner, stranger = Peers(1, tmp_path, SECRET, answer), Peers(0, tmp_path, b"another", doubled)
    with pytest.raises(CollectiveError, match="rank 1"):
        stranger.ask(1, Request(1))
    assert not answered
    for one in (owner, stranger):
        one.close()
