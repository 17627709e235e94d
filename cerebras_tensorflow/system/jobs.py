"""The jobs of all systems: their records, and a queue per system. One job at a time has the wafer.

Waiting jobs start in order of their priority; among equal ones the oldest is first.

A live job holds the lock of its own file (alive.py). So a job that `kill -9` has ended is detected without a heartbeat
and without trusting a process id.

Losing a record never ends a run: if the file cannot be written, the job continues without a record.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from cerebras_tensorflow import files
from cerebras_tensorflow.errors import SystemStateError
from cerebras_tensorflow.system import alive, database
from cerebras_tensorflow.system.database import LOCKED, RecordsError
from cerebras_tensorflow.system.job import (
    CANCELLED,
    FAILED,
    FINISHED,
    ID_LETTERS,
    ID_PATTERN,
    LIVE,
    QUEUED,
    RUNNING,
    SUCCEEDED,
    Job,
    from_row,
    is_alive,
    job_folder,
    joined,
    labels_of,
    lock_path,
    new_id,
    new_job,
    send_signal,
    systems_of,
    user_name,
)
from cerebras_tensorflow.system.reminder import Reminder
from cerebras_tensorflow.text import one_line, printable

__all__ = [
    "CANCELLED",
    "FAILED",
    "FINISHED",
    "ID_LETTERS",
    "LIVE",
    "MAX_POLLS",
    "POLL_S",
    "QUEUED",
    "RUNNING",
    "SUCCEEDED",
    "Job",
    "LiveJob",
    "UnrecordedJob",
    "Waiting",
    "attach",
    "find",
    "is_alive",
    "job_folder",
    "jobs_file",
    "joined",
    "listed",
    "reap",
    "record",
    "request_cancel",
    "send_signal",
    "set_labels",
    "submit",
    "systems_of",
    "unrecorded",
    "user_name",
]

TAKES_SYSTEM = "instr(',' || system || ',', ',' || ? || ',')"
"""Condition of SQL: a job takes the system of this name."""

POLL_S = 0.1
MAX_POLLS = 10


@dataclass(frozen=True)
class Waiting:
    """What a job waits for.

    Attributes:
        reason: The reason in one line, for the user.
        look_again_s: Time until the next check [s]. It grows with the number of jobs ahead, so that a long queue takes
            little CPU time.
    """

    reason: str
    look_again_s: float


class LiveJob:
    """A job of this process, or of the launcher that started this process. Final."""

    def __init__(self, home: Path, number: int, lock: int | None) -> None:
        self._home = home
        self._lock = lock
        self.number = number
        self._latest = record(home, number)
        self.id = self._latest.id

    @property
    def record(self) -> Job:
        """The job's record in the file now; if the file cannot be read, the last one that was read."""
        with suppress(RecordsError):
            self._latest = record(self._home, self.number)
        return self._latest

    @property
    def folder(self) -> Path:
        """The job's folder, with its log. Only its user may read it."""
        return job_folder(self._home, self.id)

    @property
    def lock(self) -> int | None:
        """File descriptor that keeps the job alive; a launcher passes it to its processes. None if attached."""
        return self._lock

    def wait_for_wafer(self, admit: Callable[[], bool], on_wait: Callable[[str], None] | None = None) -> None:
        """Return once this job has the wafer of its system.

        Args:
            admit: Called under the lock of the queue when it is this job's turn. It returns False if the system cannot
                take the job yet, and raises an error if it cannot take it at all.
            on_wait: Called with one line of text when the job starts to wait, when the reason changes, and every ten
                minutes.

        Raises:
            SystemStateError: If the job was cancelled while it waited, and whatever `admit` raises.
        """
        reminder = Reminder(on_wait)
        while True:
            try:
                waiting = self.try_start(admit)
            except RecordsError as exc:
                if exc.kind != LOCKED:
                    if on_wait is not None:
                        on_wait(f"the start of job {self.number} cannot be recorded; it starts without a record: {exc}")
                    return
                waiting = Waiting(str(exc), POLL_S)
            if waiting is None:
                return
            reminder.note(waiting.reason)
            time.sleep(waiting.look_again_s)

    def try_start(self, admit: Callable[[], bool]) -> Waiting | None:
        """Take the wafer if it is this job's turn, and return None; else return what the job waits for.

        Raises:
            SystemStateError: If the job was cancelled while it waited, and whatever `admit` raises.
        """
        # Read without the write lock first: if many jobs wait, it is nearly always another job's turn.
        with database.opened(jobs_file(self._home)) as connection:
            me = _read(connection, self.number)
            ahead = _alive(self._home, _ahead_of(connection, me))
        if me.phase == RUNNING:
            return None
        if me.phase in FINISHED or me.is_cancel_requested:
            raise SystemStateError(f"job {self.number} ({self.id}) was cancelled while it waited: {me.message}")
        if ahead:
            first = ahead[0]
            who = one_line(first.user)
            reason = f"{me.system} is busy with job {first.number} ({first.id}) of {who}; {len(ahead)} ahead"
            return Waiting(reason, POLL_S * min(len(ahead), MAX_POLLS))
        with database.transaction(jobs_file(self._home)) as connection:
            reap(connection, self._home)
            me = _read(connection, self.number)
            if _ahead_of(connection, me):
                return Waiting(f"{me.system} is busy", POLL_S)
            if not admit():
                return Waiting(f"{me.system} is rebooting", POLL_S)
            connection.execute(
                "UPDATE jobs SET phase = ?, started_at = ? WHERE number = ?", (RUNNING, time.time(), self.number)
            )
        return None

    def finish(self, phase: str, message: str = "") -> None:
        """Record how the job ended and free the wafer.

        Raises:
            RecordsError: If the end cannot be recorded. The wafer is free nevertheless.
        """
        try:
            with database.transaction(jobs_file(self._home)) as connection:
                _finish(connection, self.number, phase, message)
        finally:
            if self._lock is not None:
                with suppress(OSError):
                    lock_path(self._home, self.id).unlink(missing_ok=True)
                os.close(self._lock)
                self._lock = None


class UnrecordedJob:
    """A job of this process without a record, because the file cannot be written. It waits for no other job. Final.

    Args:
        record: The record that could not be written.
    """

    def __init__(self, record: Job) -> None:
        self.record = record
        self.number = record.number
        self.id = record.id
        self.lock: int | None = None

    @property
    def folder(self) -> Path:
        """The folder with the job's log."""
        return Path(self.record.log).parent

    def wait_for_wafer(self, admit: Callable[[], bool], on_wait: Callable[[str], None] | None = None) -> None:
        """Return once the system takes the job."""
        reminder = Reminder(on_wait)
        while not admit():
            reminder.note(f"{self.record.system} is rebooting")
            time.sleep(POLL_S)

    def finish(self, phase: str, message: str = "") -> None:
        """Keep how the job ended, in this process only."""
        self.record = replace(self.record, phase=phase, message=message, finished_at=time.time())


def jobs_file(home: Path) -> Path:
    """Return the path of the file that holds the records."""
    return home / "jobs.sqlite"


def submit(
    home: Path,
    system: str,
    execution_mode: str,
    description: str = "",
    labels: Mapping[str, str] | None = None,
    user: str | None = None,
) -> LiveJob:
    """Return a new job at the end of the queue of a system, owned by this process.

    Args:
        home: Folder of the simulated systems.
        system: Name of the system.
        execution_mode: Mode that the job needs.
        description: What runs, for the user.
        labels: Labels, key to value.
        user: Name of the user on another host who owns the job. None: the job belongs to this process's user.
    """
    job_id = new_id()
    folder = job_folder(home, job_id)
    try:
        with files.closed_to_others():
            folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
        # Take the lock before writing the record: a record without a lock counts as a dead job.
        lock = alive.hold(lock_path(home, job_id))
    except OSError as exc:
        _remove_traces(home, job_id)
        raise RecordsError(
            f"cannot create {folder} for a job: {exc}. Set CEREBRAS_HOME to a writable folder", database.kind_of(exc)
        ) from exc
    new = new_job(0, job_id, folder, system, execution_mode, description, labels or {}, user)
    try:
        with database.transaction(jobs_file(home)) as connection:
            number = _insert(connection, new)
        return LiveJob(home, number, lock)
    except BaseException:
        os.close(lock)
        _remove_traces(home, job_id)
        raise


def unrecorded(
    system: str, execution_mode: str, description: str = "", labels: Mapping[str, str] | None = None
) -> UnrecordedJob:
    """Return a job of this process without a record; its log is in a temporary folder.

    Raises:
        RecordsError: If no temporary folder can be created either.
    """
    import tempfile

    for place in (None, "/dev/shm", "."):
        with suppress(OSError):
            folder = Path(tempfile.mkdtemp(prefix="csrun-", dir=place))
            return UnrecordedJob(new_job(0, new_id(), folder, system, execution_mode, description, labels or {}, None))
    raise RecordsError("there is no folder for a log: set TMPDIR to a writable folder", database.UNUSABLE)


def _insert(connection: sqlite3.Connection, job: Job) -> int:
    values = {**job.__dict__, "labels": json.dumps(dict(job.labels), sort_keys=True)}
    del values["number"]
    marks = ", ".join("?" for _ in values)
    cursor = connection.execute(f"INSERT INTO jobs ({', '.join(values)}) VALUES ({marks})", tuple(values.values()))
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def _remove_traces(home: Path, job_id: str) -> None:
    with suppress(OSError):
        lock_path(home, job_id).unlink(missing_ok=True)
    with suppress(OSError):
        job_folder(home, job_id).rmdir()


def attach(home: Path, number: int, system: str, execution_mode: str) -> LiveJob | None:
    """Return the launcher's job, for use in one of its processes; None if the job does not exist or is dead.

    A job of other systems moves to the queues of these. Its number decides its place there. A job that takes more
    systems keeps them.

    Args:
        home: Folder of the jobs.
        number: Number of the launch.
        system: The systems that the run takes, from `joined`.
        execution_mode: Mode of the run.
    """
    with database.opened(jobs_file(home)) as connection:
        row = connection.execute("SELECT * FROM jobs WHERE number = ?", (number,)).fetchone()
    if row is None or row["phase"] not in LIVE or not is_alive(home, row["id"]):
        return None
    if systems_of(system) <= systems_of(row["system"]):
        system = row["system"]
    if (row["system"], row["execution_mode"]) != (system, execution_mode):
        with database.transaction(jobs_file(home)) as connection:
            connection.execute(
                "UPDATE jobs SET system = ?, phase = ?, started_at = NULL WHERE number = ? AND system != ?",
                (system, QUEUED, number, system),
            )
            connection.execute("UPDATE jobs SET execution_mode = ? WHERE number = ?", (execution_mode, number))
    return LiveJob(home, number, None)


def record(home: Path, number: int) -> Job:
    """Return the record of a job by its number."""
    with database.opened(jobs_file(home)) as connection:
        return _read(connection, number)


def find(home: Path, job_id: str) -> Job | None:
    """Return a job by its id, `wsjob-...`, or None."""
    with database.opened(jobs_file(home)) as connection:
        row = connection.execute("SELECT * FROM jobs WHERE id = ?", (job_id,)).fetchone()
    return None if row is None or not ID_PATTERN.fullmatch(job_id) else _present(home, from_row(row))


def listed(home: Path, phases: tuple[str, ...] = LIVE, system: str | None = None, limit: int = 5000) -> list[Job]:
    """Return the newest jobs in the given phases, oldest first. A job whose processes have ended counts as FAILED."""
    marks = ", ".join("?" for _ in phases)
    query = f"SELECT * FROM jobs WHERE phase IN ({marks})" + ("" if system is None else f" AND {TAKES_SYSTEM}")
    values = [*phases, *([] if system is None else [system]), limit]
    with database.opened(jobs_file(home)) as connection:
        rows = connection.execute(query + " ORDER BY number DESC LIMIT ?", values).fetchall()
    jobs = [_present(home, from_row(row)) for row in reversed(rows) if ID_PATTERN.fullmatch(row["id"])]
    return [job for job in jobs if job.phase in phases]


def set_labels(home: Path, job_id: str, changes: Mapping[str, str | None]) -> Job | None:
    """Set labels, or remove those whose value is None. Return the job; None if it does not exist."""
    with database.transaction(jobs_file(home)) as connection:
        row = connection.execute("SELECT * FROM jobs WHERE id = ?", (job_id,)).fetchone()
        if row is None:
            return None
        merged: dict[str, str | None] = {**labels_of(row["labels"]), **changes}
        labels = {key: value for key, value in merged.items() if value is not None}
        connection.execute("UPDATE jobs SET labels = ? WHERE id = ?", (json.dumps(labels, sort_keys=True), job_id))
    return find(home, job_id)


def request_cancel(home: Path, job_id: str, who: str) -> Job | None:
    """Record a request to stop a job, and return the job; None if it does not exist. The caller sends the signal."""
    with database.transaction(jobs_file(home)) as connection:
        row = connection.execute("SELECT * FROM jobs WHERE id = ?", (job_id,)).fetchone()
        if row is None:
            return None
        if row["phase"] in LIVE:
            connection.execute(
                "UPDATE jobs SET is_cancel_requested = 1, message = ? WHERE id = ?", (f"cancelled by {who}", job_id)
            )
    return find(home, job_id)


def reap(connection: sqlite3.Connection, home: Path) -> None:
    """Mark jobs whose processes have ended as FAILED. The caller holds the transaction."""
    for row in connection.execute("SELECT number, id FROM jobs WHERE phase IN (?, ?)", LIVE).fetchall():
        if not is_alive(home, row["id"]):
            _finish(
                connection,
                row["number"],
                FAILED,
                "its processes ended without a result (killed, or the host went down)",
            )


def _finish(connection: sqlite3.Connection, number: int, phase: str, message: str) -> None:
    # A cancelled job may still end by itself. Unless it succeeded, its record says CANCELLED.
    connection.execute(
        "UPDATE jobs SET phase = CASE WHEN is_cancel_requested AND ? != 'SUCCEEDED' THEN 'CANCELLED' ELSE ? END, "
        "message = CASE WHEN is_cancel_requested THEN message ELSE ? END, finished_at = ? "
        "WHERE number = ? AND phase IN ('QUEUED', 'RUNNING')",
        (phase, phase, printable(message), time.time(), number),
    )


def _read(connection: sqlite3.Connection, number: int) -> Job:
    row = connection.execute("SELECT * FROM jobs WHERE number = ?", (number,)).fetchone()
    if row is None:
        raise SystemStateError(f"there is no job {number}")
    return from_row(row)


def _ahead_of(connection: sqlite3.Connection, me: Job) -> list[Job]:
    """Return the jobs that this one waits for: running ones and those ahead in the queue that share a system with it.

    A job takes all its systems at once, and holds none while it waits. So jobs with several systems cannot deadlock.
    """
    rows = connection.execute(
        "SELECT * FROM jobs WHERE phase IN ('QUEUED', 'RUNNING') AND number != ? "
        "AND (priority < ? OR (priority = ? AND number < ?) OR phase = 'RUNNING') "
        "ORDER BY phase = 'QUEUED', priority, number",
        (me.number, me.priority, me.priority, me.number),
    )
    own = systems_of(me.system)
    return [from_row(row) for row in rows if own & systems_of(row["system"])]


def _alive(home: Path, queue: list[Job]) -> list[Job]:
    return [job for job in queue if is_alive(home, job.id)]


def _present(home: Path, job: Job) -> Job:
    if job.phase in LIVE and not is_alive(home, job.id):
        # The job may have ended normally since its record was read: read the record again.
        again = record(home, job.number)
        if again.phase in LIVE:
            return Job(**{**again.__dict__, "phase": CANCELLED if again.is_cancel_requested else FAILED})
        return again
    return job
