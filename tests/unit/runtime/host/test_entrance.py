"""Connections between CSX begin even while strangers connect, and while the system has no resources for a time."""

from __future__ import annotations

import errno
import itertools
import os
import socket
import threading
import time
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cerebras_tensorflow.runtime.collectives import launch, tcp
from cerebras_tensorflow.runtime.csx.peers import Peers, Request, peer_file
from cerebras_tensorflow.runtime.host import entrance, links
from cerebras_tensorflow.runtime.host.announcement import read_announcement
from cerebras_tensorflow.runtime.weight_store.buffers import Bytes

LIMIT_S = 60.0
SECRET = b"of the run"


def test_a_stranger_that_sends_a_byte_now_and_then_cannot_prolong_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    now = itertools.count(0, 8.0)
    monkeypatch.setattr(links.time, "monotonic", lambda: next(now))
    link, stranger = socket.socketpair()
    stranger.sendall(bytes(64))
    received = []

    class Dripping:
        sendmsg, settimeout = link.sendmsg, link.settimeout

        def recv(self, _: int) -> bytes:
            received.append(link.recv(1))
            return received[-1]

    with pytest.raises(links.LinkEndedError, match="has not shown the secret in time"):
        links.prove(Dripping(), SECRET, b"owner", b"caller", 10.0)  # type: ignore[arg-type]
    assert len(received) == 2
    for one in (link, stranger):
        one.close()


def answer(_: Request, data: Bytes) -> tuple[int, Iterable[Bytes]]:
    return data.nbytes, (data,)


def test_a_csx_that_finds_only_strangers_at_the_port_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entrance, "_MOST_STRANGERS", 1)
    owner = Peers(0, tmp_path, SECRET, answer)
    about = read_announcement(peer_file(tmp_path, 0))
    assert about is not None
    stranger = socket.create_connection((about["host"], about["port"]))
    stranger.recv(1)  # it has the place
    caller = Peers(1, tmp_path, SECRET, answer, check=stranger.close)
    assert caller.ask(0, Request(1), np.zeros(3, np.uint8)).size == 3
    for one in (owner, caller):
        one.close()


def test_a_rank_that_finds_only_strangers_at_the_port_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entrance, "_MOST_STRANGERS", 1)
    found: list[tcp.TcpRank] = []
    first = threading.Thread(target=lambda: found.append(tcp.join(0, 2, tmp_path, SECRET)))
    first.start()
    while (about := read_announcement(tcp.address_file(tmp_path, 0))) is None:
        time.sleep(0.01)
    stranger = socket.create_connection((about["host"], about["port"]))
    monkeypatch.setattr(entrance.logger, "warning", lambda *_: stranger.close())  # of the first attempt
    found.append(tcp.join(1, 2, tmp_path, SECRET))
    first.join()
    stranger.close()
    for one in found:
        one.close()


def test_an_entrance_outlives_the_want_of_files_and_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    full = [OSError(number, os.strerror(number)) for number in (errno.EMFILE, errno.ENFILE)]
    failures = [RuntimeError("can't start new thread")] * 3

    class Listener(socket.socket):
        def accept(self) -> tuple[socket.socket, Any]:
            if full:
                raise full.pop()
            return super().accept()

    monkeypatch.setattr(entrance, "_MOST_STRANGERS", 1)

    class Thread(threading.Thread):
        def __init__(self, **given: Any) -> None:
            super().__init__(**given)
            self.is_of_a_link = bool(given.get("args"))

        def start(self) -> None:
            if self.is_of_a_link and failures:
                raise failures.pop()
            super().start()

    monkeypatch.setattr(entrance.threading, "Thread", Thread)

    def serve(link: socket.socket, proving: AbstractContextManager[float]) -> None:
        with proving:
            link.sendall(b"welcome")
        link.close()

    listener = Listener()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    door = entrance.Entrance(listener, serve, "test")
    said = b""
    for _ in range(4):
        with socket.create_connection(listener.getsockname(), LIMIT_S) as link:
            said += link.recv(7)  # empty if no thread could be started
    assert said == b"welcome"
    assert not full
    assert not failures
    door.close()


def test_the_ranks_give_up_before_the_first_csx_so_that_it_can_report_which_one_did_not_come() -> None:
    assert launch._START_LIMIT_S >= tcp.START_LIMIT_S + 2 * entrance.PROOF_LIMIT_S
