"""The simulated systems of this user or site: finds, creates, changes and removes them, and runs jobs on them."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from cerebras_tensorflow.config import env
from cerebras_tensorflow.errors import SystemNotFoundError, SystemStateError
from cerebras_tensorflow.system import database, facts, jobs, remote, systems_table
from cerebras_tensorflow.system.database import LOCKED, REFUSED, UNUSABLE, RecordsError
from cerebras_tensorflow.system.interface import System
from cerebras_tensorflow.system.state import BOOTING, SystemState, check_admits
from cerebras_tensorflow.text import is_number, is_port

EMBEDDED_NAME = "cs2-embedded"
EMBEDDED_ADDRESS = f"localhost:{facts.PORT}"
EMBEDDED = SystemState(EMBEDDED_NAME, EMBEDDED_ADDRESS, env.PIPELINED, is_mode_pinned=False)
UNRECORDED = "0"
"""Number of a launch that has no record."""
_MODE_LOCK_TIMEOUT_S = 2.0
"""Everybody who may read the systems can keep writers out. The queue waits while a run's mode is recorded."""

NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
HOST_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}|\[[0-9A-Fa-f:.]+\]")

logger = logging.getLogger(__name__)

_held: dict[tuple[Path, str], jobs.LiveJob | jobs.UnrecordedJob] = {}
"""Jobs of this process that hold a system, so that a run inside a run (train and evaluate) does not wait for itself."""


@dataclass(frozen=True)
class Change:
    """One line of a system's log of changes."""

    at: float
    who: str
    what: str


@dataclass(frozen=True)
class LocalSystem(System):
    """A system of this home."""

    home: Path
    state: SystemState

    @property
    def name(self) -> str:
        """Name of the system."""
        return self.state.name

    @property
    def address(self) -> str:
        """host:port, as scripts pass it."""
        return self.state.address

    @property
    def execution_mode(self) -> str:
        """`pipelined` or `weight_streaming`."""
        return self.state.execution_mode

    @contextmanager
    def run(
        self,
        execution_mode: str,
        description: str = "",
        on_wait: Callable[[str], None] | None = None,
        num_csx: int = 1,
    ) -> Iterator[jobs.LiveJob | jobs.UnrecordedJob]:
        """Hold the system for one run, as interface.System.run says.

        Inside a launch of csrun this uses the launcher's job, which is in the queue already.
        """
        check_admits(self._present_state(), execution_mode)
        key = (self.home, self.name)
        if key in _held:
            yield _held[key]
            return
        names = (self.name, *self._others(num_csx - 1, execution_mode))
        job, is_ours = self._job(execution_mode, description, names)
        _held[key] = job
        phase, message = jobs.FAILED, ""
        try:
            job.wait_for_wafer(lambda: all(self.admit(execution_mode, name) for name in names), on_wait)
            yield job
            phase = jobs.SUCCEEDED
        except BaseException as exc:
            message = f"{type(exc).__name__}: {exc}"
            if isinstance(exc, KeyboardInterrupt):
                phase = jobs.CANCELLED
            raise
        finally:
            del _held[key]
            if is_ours:
                try:
                    job.finish(phase, message)
                except RecordsError as exc:
                    logger.warning("The end of job %d is not recorded: %s", job.number, exc)

    def _others(self, number: int, execution_mode: str) -> list[str]:
        """Return other systems of this home for a run on several, free ones first; fewer if there are not so many."""
        if not number:
            return []
        try:
            busy = {name for job in jobs.listed(self.home) for name in jobs.systems_of(job.system)}
            others = [state for state in listed(self.home) if state.name != self.name]
        except RecordsError as exc:
            if exc.kind != UNUSABLE:
                raise
            return []
        free_first = sorted(others, key=lambda state: (state.name in busy, state.name))
        return [state.name for state in free_first if _admits(state, execution_mode)][:number]

    def admit(self, execution_mode: str, name: str | None = None) -> bool:
        """Return what the function `admit` returns; if the disk fails, check the last known state instead.

        Args:
            execution_mode: Mode of the run.
            name: Another system of this home; None: this one.
        """
        try:
            return admit(self.home, name or self.name, execution_mode)
        except RecordsError as exc:
            if exc.kind != UNUSABLE:
                raise
            check_admits(self.state, execution_mode)
            return True

    def _present_state(self) -> SystemState:
        try:
            return read(self.home, self.name)
        except RecordsError as exc:
            if exc.kind != UNUSABLE:
                raise
            return self.state  # the last state that was read

    def _job(
        self, execution_mode: str, description: str, names: Sequence[str]
    ) -> tuple[jobs.LiveJob | jobs.UnrecordedJob, bool]:
        number = env.read().job_id
        systems = jobs.joined(names)
        try:
            if number is not None and is_number(number):
                launched = jobs.attach(self.home, int(number), systems, execution_mode)
                if launched is not None:
                    return launched, False
            return jobs.submit(self.home, systems, execution_mode, description), True
        except RecordsError as exc:
            if exc.kind in (REFUSED, LOCKED):
                raise
            if number != UNRECORDED:  # otherwise the launcher has printed this already
                logger.warning("This job runs without a record and without a place in the queue: %s", exc)
            return jobs.unrecorded(systems, execution_mode, description), True


def _admits(state: SystemState, execution_mode: str) -> bool:
    try:
        check_admits(state, execution_mode)
    except SystemStateError:
        return False
    return True


def find(cs_ip: str | None = None, home: Path | None = None) -> System:
    """Return the system at an address: one of this home, or else one that another process serves.

    Args:
        cs_ip: `host`, `host:port` or a system's name. None, `localhost` and `127.0.0.1` mean the embedded system.
        home: Folder of the systems; the environment's by default.

    Raises:
        SystemNotFoundError: If none answers; the text says how to register one, or to run without.
    """
    home = env.read().home if home is None else home
    try:
        states = listed(home)
    except RecordsError as exc:
        # On a full disk a new file may not get its first system. A run on the embedded system does not need the file.
        if exc.kind != UNUSABLE or _has_systems(systems_file(home)):
            raise
        states = [EMBEDDED]
    if cs_ip is None or not cs_ip.strip():
        return LocalSystem(home, next(state for state in states if state.name == EMBEDDED_NAME))
    wanted = cs_ip.strip()
    try:
        address = normal_address(wanted)
    except ValueError as exc:
        raise SystemNotFoundError(f"cs_ip {cs_ip!r}: {exc}") from exc
    for state in states:
        if state.address == address or state.name == wanted:
            return LocalSystem(home, state)
    served = remote.find(address)
    if served is not None:
        return served
    known = ", ".join(f"{state.name} at {state.address}" for state in states)
    raise SystemNotFoundError(
        f"no simulated CS-2 answers at {address}. Known here: {known}. Register one under that address with "
        f"`cs-system create NAME --address {wanted}`, start one there with `cs-system serve`, or leave out --cs_ip "
        "to run on the embedded system."
    )


def _has_systems(path: Path) -> bool:
    """Return whether a file has a record of a system, as far as it can be read."""
    if not path.exists() or not path.stat().st_size:
        return False
    try:
        with database.opened(path) as connection:
            return connection.execute("SELECT 1 FROM systems").fetchone() is not None
    except RecordsError:
        return True


def find_here(cs_ip: str | None = None, home: Path | None = None) -> LocalSystem:
    """Return the system of this home that answers at an address.

    Raises:
        SystemNotFoundError: If there is none, or another host serves it.
    """
    system = find(cs_ip, home)
    if not isinstance(system, LocalSystem):
        raise SystemNotFoundError(f"{system.name} is served from {system.address}; its administrators use `cs` there")
    return system


def create(home: Path, name: str, address: str | None = None, execution_mode: str = env.PIPELINED) -> SystemState:
    """Return a new system, ACTIVE in the given mode.

    Args:
        home: Folder of the systems.
        name: Letters, digits, dot, dash, underscore.
        address: `host` or `host:port` that scripts pass as --cs_ip; NAME:9000 by default.
        execution_mode: `pipelined` or `weight_streaming`.

    Raises:
        ValueError: If the name, address or mode is malformed or taken.
    """
    _ensure_embedded(home)
    if not NAME_PATTERN.fullmatch(name):
        raise ValueError(f"{name!r} is not a system name: letters, digits, dot, dash and underscore, at most 63")
    if execution_mode not in env.EXECUTION_MODES:
        raise ValueError(f"unknown execution mode {execution_mode!r}: expected one of {', '.join(env.EXECUTION_MODES)}")
    state = SystemState(name, normal_address(address or name), execution_mode, is_mode_pinned=True)
    with database.transaction(systems_file(home)) as connection:
        for other in systems_table.read_all(connection):
            if other.name == name:
                raise ValueError(f"there is a system {name} at {other.address} already; see `cs-system list`")
            if other.address == state.address:
                raise ValueError(f"{state.address} belongs to the system {other.name} already; see `cs-system list`")
        systems_table.insert(connection, state)
        systems_table.note(connection, name, f"created at {state.address}, {execution_mode}")
    return state


def remove(home: Path, name: str) -> None:
    """Remove a system; its log of changes stays.

    Raises:
        SystemNotFoundError: If no system has that name.
        SystemStateError: If it is the embedded one, or a job runs on it.
    """
    if name == EMBEDDED_NAME:
        raise SystemStateError(f"{EMBEDDED_NAME} is the system that runs use without --cs_ip; it cannot be removed")
    _change(home, name, lambda _: None, "removed")


def change(
    home: Path, name: str, transition: Callable[[SystemState], SystemState], what: str, who: str | None = None
) -> SystemState:
    """Change a system as an administrator, and return its new state.

    Args:
        home: Folder of the systems.
        name: Name of the system.
        transition: One of the changes of state.py.
        what: Description of the change, for the log.
        who: Name of the administrator, for the log; by default this process's user.

    Raises:
        SystemStateError: If this user may not change the system, a job runs on it, or its state forbids the change.
    """
    after = _change(home, name, transition, what, who)
    assert after is not None
    return after


def _change(
    home: Path,
    name: str,
    transition: Callable[[SystemState], SystemState | None],
    what: str,
    who: str | None = None,
) -> SystemState | None:
    check_administrator(home)
    # Lock the queue first, then the systems, in the same order as a job that starts. So no job starts in between.
    with database.transaction(jobs.jobs_file(home)) as queue:
        jobs.reap(queue, home)
        busy = queue.execute(
            f"SELECT number, id, user FROM jobs WHERE {jobs.TAKES_SYSTEM} AND phase = 'RUNNING'", (name,)
        ).fetchone()
        with database.transaction(systems_file(home)) as connection:
            before = systems_table.read_one(connection, name)
            after = transition(before)
            if busy is not None:
                raise SystemStateError(
                    f"{name} is busy with job {busy['number']} ({busy['id']}) of {busy['user']}. "
                    f"Wait until it ends, or stop it with `csctl cancel job {busy['id']}`."
                )
            if after is None:
                connection.execute("DELETE FROM systems WHERE name = ?", (name,))
            else:
                systems_table.update(connection, after)
            systems_table.note(connection, name, what, who)
    return after


def read(home: Path, name: str) -> SystemState:
    """Return the state of a system by its name.

    Raises:
        SystemNotFoundError: If no system has that name; the text lists the known names.
    """
    _ensure_embedded(home)
    with database.opened(systems_file(home)) as connection:
        return systems_table.read_one(connection, name)


def listed(home: Path) -> list[SystemState]:
    """Return all systems, the embedded one first."""
    _ensure_embedded(home)
    with database.opened(systems_file(home)) as connection:
        return systems_table.read_all(connection)


def changes(home: Path, name: str, limit: int = 100) -> list[Change]:
    """Return the latest changes to a system, oldest first."""
    with database.opened(systems_file(home)) as connection:
        rows = connection.execute(
            "SELECT at, who, what FROM changes WHERE system = ? ORDER BY number DESC LIMIT ?", (name, limit)
        ).fetchall()
    return [Change(row["at"], row["who"], row["what"]) for row in reversed(rows)]


def admit(home: Path, name: str, execution_mode: str) -> bool:
    """Check that a system can take the run whose turn it is, and adapt the system's mode if none was set.

    Returns:
        False while the system still reboots.

    Raises:
        SystemStateError, ExecModeError: As `state.check_admits` raises them.
    """
    state = read(home, name)
    check_admits(state, execution_mode)
    if state.phase(time.time()) == BOOTING:
        return False
    if state.execution_mode != execution_mode:
        try:
            with database.transaction(systems_file(home), _MODE_LOCK_TIMEOUT_S) as connection:
                state = systems_table.read_one(connection, name)
                check_admits(state, execution_mode)
                systems_table.update(connection, replace(state, execution_mode=execution_mode))
                systems_table.note(connection, name, f"execution mode follows the run: {execution_mode}")
        except RecordsError as exc:
            # No administrator has set a mode, so the run can start even if this change cannot be recorded.
            logger.info("The execution mode of %s cannot be recorded: %s", name, exc)
    return True


def check_administrator(home: Path) -> None:
    """Check that this user may change systems, i.e. may write their file.

    Raises:
        SystemStateError: If not.
    """
    path = systems_file(home)
    if path.exists() and not os.access(path, os.W_OK):
        raise SystemStateError(f"only administrators may change this system; {jobs.user_name()} cannot write to {path}")


def systems_file(home: Path) -> Path:
    """Return the path of the file that holds the systems."""
    return home / "systems.sqlite"


def normal_address(text: str) -> str:
    """Return an address in the normal form host:port.

    >>> normal_address("10.0.0.1"), normal_address("127.0.0.1:9000"), normal_address("CS2.example.org:1234")
    ('10.0.0.1:9000', 'localhost:9000', 'cs2.example.org:1234')
    """
    host, separator, port = text.strip().rpartition(":")
    if not separator or text.strip().endswith("]"):
        host, port = text.strip(), str(facts.PORT)
    if not is_port(port) or int(port) == 0 or not HOST_PATTERN.fullmatch(host):
        raise ValueError(f"{text!r} is not an address: expected HOST or HOST:PORT, with a port from 1 to 65535")
    host = host.lower()
    return f"{'localhost' if host in ('127.0.0.1', '[::1]') else host}:{int(port)}"


def _ensure_embedded(home: Path) -> None:
    with database.opened(systems_file(home)) as connection:
        if connection.execute("SELECT 1 FROM systems WHERE name = ?", (EMBEDDED_NAME,)).fetchone():
            return
    with database.transaction(systems_file(home)) as connection:
        if not connection.execute("SELECT 1 FROM systems WHERE name = ?", (EMBEDDED_NAME,)).fetchone():
            systems_table.insert(connection, EMBEDDED)
            systems_table.note(connection, EMBEDDED_NAME, f"created at {EMBEDDED_ADDRESS}")
