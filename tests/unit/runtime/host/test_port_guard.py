"""runtime.host.port_guard: a server without a secret answers the processes of its own user only."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

import pytest

from cerebras_tensorflow.runtime.host import port_guard, socket_filter
from cerebras_tensorflow.runtime.host.port_guard import PortGuard

ATTACK = """
import encodings.idna, socket, sys  # not readable as another user

def attack():
    for address in ("127.0.0.1", "127.0.0.2"):
        try:
            with socket.create_connection((address, int(sys.argv[1])), timeout=2.5):
                print("in")
        except OSError as error:
            print(type(error).__name__)
"""


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("0.0.0.0", 0)) as one:
        one.settimeout(10)
        yield one


@pytest.fixture
def port(server: socket.socket) -> int:
    return int(server.getsockname()[1])


def test_only_processes_of_this_user_come_in(server: socket.socket, port: int, as_nobody: Callable[..., Any]) -> None:
    guard = PortGuard(port)
    attack = as_nobody(ATTACK, port)
    for _ in range(2):
        with socket.create_connection(("127.0.0.1", port), timeout=10) as caller:
            caller.sendall(b"mine")
            link, address = server.accept()
            with link:
                assert link.recv(10) == b"mine"
                assert address == caller.getsockname()
    output, errors = attack.communicate(timeout=60)
    assert output.split() == ["TimeoutError"] * 2, errors
    server.settimeout(0)
    with pytest.raises(BlockingIOError):
        server.accept()
    guard.close()


def test_a_connection_from_before_the_guard_is_cut_off(server: socket.socket, port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as early, server.accept()[0] as link:
        early.sendall(b"in time")
        assert link.recv(10) == b"in time"
        guard = PortGuard(port)
        early.sendall(b"too late")
        link.settimeout(0.5)
        with pytest.raises(TimeoutError):
            link.recv(10)
        guard.close()


def test_a_connection_that_waits_in_the_backlog_is_closed(server: socket.socket, port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as early:
        early.sendall(b"in time")
        guard = PortGuard(port)
        with suppress(ConnectionResetError):
            assert early.recv(10) == b""
    server.settimeout(0)
    with pytest.raises(BlockingIOError):
        server.accept()
    guard.close()


def test_nothing_is_read_from_a_socket_that_took_the_port_of_an_admitted_one(
    server: socket.socket, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    present = port_guard._tcp_sockets
    is_another = True

    def shown(ends: str) -> list[port_guard._Socket]:
        calls = port_guard._SYN_SENT
        return [one if one.state == calls or not is_another else replace(one, inode=1) for one in present(ends)]

    monkeypatch.setattr(port_guard, "_tcp_sockets", shown)
    guard = PortGuard(port)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as caller, server.accept()[0] as link:
        caller.sendall(b"a stranger's")
        link.settimeout(1)
        with pytest.raises(TimeoutError):
            link.recv(10)
    is_another = False
    with socket.create_connection(("127.0.0.1", port), timeout=10) as caller, server.accept()[0] as link:
        caller.sendall(b"mine")
        assert link.recv(10) == b"mine"
    guard.close()


def test_a_failure_after_a_caller_came_in_does_not_keep_the_next_one_out(
    server: socket.socket, port: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    guard = PortGuard(port)
    attach, calls = socket_filter.attach, 0

    def fail_once(*arguments: Any, **networks: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:  # the first caller is in; now the listener's filter should forget it
            raise OSError("no memory")
        attach(*arguments, **networks)

    monkeypatch.setattr(socket_filter, "attach", fail_once)
    with ExitStack() as stay_open:
        for _ in range(2):
            caller = stay_open.enter_context(socket.create_connection(("127.0.0.1", port), timeout=4))
            link = stay_open.enter_context(server.accept()[0])
            link.settimeout(4)
            caller.sendall(b"mine")
            assert link.recv(10) == b"mine"
    guard.close()
    assert calls > 2 and caplog.text.count("no new connections for the moment (no memory)") == 1


def test_a_guard_that_cannot_be_made_leaves_the_port_as_it_was(
    server: socket.socket, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_guard: PortGuard) -> None:
        raise OSError("no more file descriptors")

    monkeypatch.setattr(PortGuard, "_hang_up", fail)
    with pytest.raises(OSError, match="no more file descriptors"):
        PortGuard(port)
    with socket.create_connection(("127.0.0.1", port), timeout=10):
        server.accept()[0].close()


def test_a_closed_guard_lets_nobody_in(server: socket.socket, port: int) -> None:
    PortGuard(port).close()
    with pytest.raises(TimeoutError):
        socket.create_connection(("127.0.0.1", port), timeout=1.5)


def test_a_port_of_nobody_has_no_guard() -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        with pytest.raises(OSError, match="does not listen at port"):
            PortGuard(one.getsockname()[1])
