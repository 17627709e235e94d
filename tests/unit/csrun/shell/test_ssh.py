"""The number of shells over ssh is limited: one connection may ask for any number of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from csrun.shell import ssh
from csrun.shell.commands import Login


class Process:
    """What a client's process gets: texts on standard error, and an exit code."""

    def __init__(self, connection: str = "one", may_change: bool = True) -> None:
        self._about = {"connection": connection, "login": Login("somebody", may_change)}
        self.told: list[bytes] = []
        self.code: int | None = None
        self.stderr: Any = self

    def get_extra_info(self, name: str) -> Any:
        return self._about[name]

    def write(self, text: bytes) -> None:
        self.told.append(text)

    def exit(self, code: int) -> None:
        self.code = code


def test_a_shell_beyond_the_limit_is_refused_until_another_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "MAX_SHELLS", 1)

    async def scenario() -> tuple[Process, Process]:
        door, end = ssh.Door(), asyncio.Event()

        async def shell(process: Process) -> None:
            process.code = 0
            await end.wait()

        first = asyncio.create_task(door.serve(Process(), shell))
        await asyncio.sleep(0)
        refused, later = Process(), Process()
        await door.serve(refused, shell)
        end.set()
        await first
        await door.serve(later, shell)
        return refused, later

    refused, later = asyncio.run(scenario())
    assert (refused.code, refused.told) == (1, [b"1 shells are open already; close one, or try later\n"])
    assert (later.code, later.told) == (0, [])


def test_viewers_and_single_connections_leave_shells_to_administrators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "MAX_SHELLS_OF_ONE", 2)
    monkeypatch.setattr(ssh, "MAX_VIEWERS", 3)

    async def scenario() -> list[Process]:
        door, end = ssh.Door(), asyncio.Event()

        async def shell(process: Process) -> None:
            process.code = 0
            await end.wait()

        asked = [Process("one", may_change=False) for _ in range(3)]
        asked += [Process(name, may_change=False) for name in ("two", "three")]
        asked.append(Process("admin", may_change=True))
        shells = [asyncio.create_task(door.serve(process, shell)) for process in asked]
        await asyncio.sleep(0)
        end.set()
        await asyncio.gather(*shells)
        assert not door._shells and not door._viewers_shells
        return asked

    asked = asyncio.run(scenario())
    assert [process.code for process in asked] == [0, 0, 1, 0, 1, 0]
    assert asked[2].told == [b"2 shells of this connection are open already; close one, or try later\n"]
    assert asked[4].told == [b"3 shells of viewers are open already; close one, or try later\n"]


def test_viewers_leave_connections_to_administrators(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ssh, "MAX_VIEWERS", 1)

    class Connection:
        def __init__(self, username: str) -> None:
            self.is_aborted = False
            self._about: dict[str, Any] = {"username": username, "peername": ("127.0.0.1", 1)}

        def get_extra_info(self, name: str) -> Any:
            return self._about[name]

        def set_extra_info(self, **about: Any) -> None:
            self._about |= about

        def abort(self) -> None:
            self.is_aborted = True

    async def scenario() -> list[bool]:
        door = ssh.Door()
        settings = ssh.SshSettings("127.0.0.1", 0, None, None, None, tmp_path / "key")

        def logged_in(name: str) -> tuple[ssh.Gate, Connection]:
            gate, connection = ssh.Gate(settings, door), Connection(name)
            gate.connection_made(connection)
            gate.auth_completed()
            return gate, connection

        (first, one), (refused, two), (_, admin) = logged_in("ada"), logged_in("bob"), logged_in("admin")
        refused.connection_lost(None)
        first.connection_lost(None)
        _, later = logged_in("bob")
        return [one.is_aborted, two.is_aborted, admin.is_aborted, later.is_aborted]

    assert asyncio.run(scenario()) == [False, True, False, False]
