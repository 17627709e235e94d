"""The jobs of every system: their records, and the queue in which one job at a time has the wafer, first come first.

A live job holds a lock (flock) on a file of its own. The kernel lets go of it when the last process of the job is gone,
however it went, so a job that was killed with -9 is told from a living one without a heartbeat and without trusting a
process number. The order is the order of the records.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import string
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cerebras_tensorflow.errors import SystemStateError
from cerebras_tensorflow.system import database as store

QUEUED = "QUEUED"
RUNNING = "RUNNING"
SUCCEEDED = "SUCCEEDED"
FAILED = "FAILED"
CANCELLED = "CANCELLED"
LIVE = (QUEUED, RUNNING)
FINISHED = (SUCCEEDED, FAILED, CANCELLED)

POLL_S = 0.1
MAX_POLLS = 10
ID_LETTERS = string.ascii_lowercase + string.digits


@dataclass(frozen=True)
class Job:
    """The record of one launch. Times are seconds since the epoch; None means not yet."""

    number: int
    id: str
    system: str
    execution_mode: str
    user: str
    uid: int
    host: str
    pid: int
    phase: str
    description: str
    log: str
    message: str
    is_cancel_requested: bool
    created_at: float
    started_at: float | None
    finished_at: float | None
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Waiting:
    """What a job waits for.

    Attributes:
        reason: In one line, for people.
        look_again_s: When to look again [s]: the later, the more jobs are ahead, so that a long queue costs little.
    """

    reason: str
    look_again_s: float


class LiveJob:
    """A job of this process, or of the launcher that started this process. Final."""

    def __init__(self, home: Path, number: int, lock: int | None) -> None:
        self._home = home
        self._lock = lock
        self.number = number
        self.id = record(home, number).id

    @property
    def record(self) -> Job:
        """The job as it stands in the file now."""
        return record(self._home, self.number)

    @property
    def folder(self) -> Path:
        """Where the job keeps its log; only its user may look."""
        return job_folder(self._home, self.id)

    @property
    def lock(self) -> int | None:
        """File descriptor that keeps the job alive; a launcher passes it on to its processes. None when attached."""
        return self._lock

    def wait_for_wafer(self, admit: Callable[[], bool], on_wait: Callable[[str], None] | None = None) -> None:
        """Return once this job has the wafer of its system.

        Args:
            admit: Called when it is this job's turn, under the lock of the queue: raises when the system cannot take
                the job, returns False when it cannot take it yet.
            on_wait: Called with one line of text each time that what the job waits for changes.

        Raises:
            SystemStateError: If the job was cancelled while it waited, and whatever `admit` raises.
        """
        told = None
        while True:
            waiting = self.try_start(admit)
            if waiting is None:
                return
            if on_wait is not None and waiting.reason != told:
                on_wait(waiting.reason)
                told = waiting.reason
            time.sleep(waiting.look_again_s)

    def try_start(self, admit: Callable[[], bool]) -> Waiting | None:
        """Take the wafer if it is this job's turn and return None; else return what it waits for.

        Raises:
            SystemStateError: If the job was cancelled while it waited, and whatever `admit` raises.
        """
        # A look without the write lock first: with many waiting jobs it is nearly always somebody else's turn.
        with store.opened(jobs_file(self._home)) as connection:
            me = _read(connection, self.number)
            ahead = _alive(self._home, _ahead_of(connection, me))
        if me.phase == RUNNING:
            return None
        if me.phase in FINISHED or me.is_cancel_requested:
            raise SystemStateError(f"job {self.number} ({self.id}) was cancelled while it waited: {me.message}")
        if ahead:
            first = ahead[0]
            reason = f"{me.system} is busy with job {first.number} ({first.id}) of {first.user}; {len(ahead)} ahead"
            return Waiting(reason, POLL_S * min(len(ahead), MAX_POLLS))
        with store.transaction(jobs_file(self._home)) as connection:
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
        """Record how the job ended and let go of the wafer."""
        with store.transaction(jobs_file(self._home)) as connection:
            _finish(connection, self.number, phase, message)
        if self._lock is not None:
            _lock_path(self._home, self.id).unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None


def jobs_file(home: Path) -> Path:
    """Return the path of the file that holds the records."""
    return home / "jobs.sqlite"


def job_folder(home: Path, job_id: str) -> Path:
    """Return the folder of one job."""
    return home / "jobs" / job_id


def _lock_path(home: Path, job_id: str) -> Path:
    return home / "jobs" / f"{job_id}.alive"


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
        description: What runs, for people.
        labels: Labels, key to value.
        user: Name of the user on another host for whom this process holds the job; None: the job is this process's own.
    """
    import secrets  # with its hashes; only a launch pays for it

    job_id = "wsjob-" + "".join(secrets.choice(ID_LETTERS) for _ in range(22))
    folder = job_folder(home, job_id)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
    except OSError as exc:
        raise SystemStateError(
            f"cannot create {folder} for a job: {exc}. Set CEREBRAS_HOME to a writable folder"
        ) from exc
    # The lock comes before the record: a record without a lock counts as a dead job.
    lock = os.open(_lock_path(home, job_id), os.O_RDONLY | os.O_CREAT, 0o644)
    fcntl.flock(lock, fcntl.LOCK_EX)
    values = {
        "id": job_id,
        "system": system,
        "execution_mode": execution_mode,
        "user": user or user_name(),
        "uid": os.getuid(),
        "host": os.uname().nodename,
        "pid": os.getpid() if user is None else 0,
        "phase": QUEUED,
        "description": description,
        "labels": json.dumps(dict(labels or {}), sort_keys=True),
        "log": str(folder / "output.log"),
        "message": "",
        "is_cancel_requested": 0,
        "created_at": time.time(),
    }
    with store.transaction(jobs_file(home)) as connection:
        marks = ", ".join("?" for _ in values)
        cursor = connection.execute(f"INSERT INTO jobs ({', '.join(values)}) VALUES ({marks})", tuple(values.values()))
        number = cursor.lastrowid
    assert number is not None
    return LiveJob(home, number, lock)


def attach(home: Path, number: int, system: str, execution_mode: str) -> LiveJob | None:
    """Return the launcher's living job as seen from one of its processes; None when there is no such job.

    A job that waits for or has another system is moved to this one, in its place by number: it then has to wait there.
    """
    with store.transaction(jobs_file(home)) as connection:
        row = connection.execute("SELECT * FROM jobs WHERE number = ?", (number,)).fetchone()
        if row is None or row["phase"] not in LIVE or not is_alive(home, row["id"]):
            return None
        if row["system"] != system:
            connection.execute(
                "UPDATE jobs SET system = ?, phase = ?, started_at = NULL WHERE number = ?", (system, QUEUED, number)
            )
        connection.execute("UPDATE jobs SET execution_mode = ? WHERE number = ?", (execution_mode, number))
    return LiveJob(home, number, None)


def record(home: Path, number: int) -> Job:
    """Return the record of a job by its number."""
    with store.opened(jobs_file(home)) as connection:
        return _read(connection, number)


def find(home: Path, job_id: str) -> Job | None:
    """Return a job by its id, `wsjob-...`, or None."""
    with store.opened(jobs_file(home)) as connection:
        row = connection.execute("SELECT * FROM jobs WHERE id = ?", (job_id,)).fetchone()
        return None if row is None else _present(home, _job(row))


def listed(home: Path, phases: tuple[str, ...] = LIVE, system: str | None = None, limit: int = 5000) -> list[Job]:
    """Return the newest jobs in the given phases, oldest first; a job whose processes are gone counts as FAILED."""
    marks = ", ".join("?" for _ in phases)
    query = f"SELECT * FROM jobs WHERE phase IN ({marks})" + ("" if system is None else " AND system = ?")
    values = [*phases, *([] if system is None else [system]), limit]
    with store.opened(jobs_file(home)) as connection:
        rows = connection.execute(query + " ORDER BY number DESC LIMIT ?", values).fetchall()
    jobs = [_present(home, _job(row)) for row in reversed(rows)]
    return [job for job in jobs if job.phase in phases]


def set_labels(home: Path, job_id: str, changes: Mapping[str, str | None]) -> Job | None:
    """Return the job after adding, replacing and (None) removing labels; None when there is no such job."""
    with store.transaction(jobs_file(home)) as connection:
        row = connection.execute("SELECT * FROM jobs WHERE id = ?", (job_id,)).fetchone()
        if row is None:
            return None
        merged: dict[str, str | None] = {**json.loads(row["labels"]), **changes}
        labels = {key: value for key, value in merged.items() if value is not None}
        connection.execute("UPDATE jobs SET labels = ? WHERE id = ?", (json.dumps(labels, sort_keys=True), job_id))
    return find(home, job_id)


def request_cancel(home: Path, job_id: str, who: str) -> Job | None:
    """Return the job after noting that it shall stop; None when there is no such job. The signal is the caller's."""
    with store.transaction(jobs_file(home)) as connection:
        row = connection.execute("SELECT * FROM jobs WHERE id = ?", (job_id,)).fetchone()
        if row is None:
            return None
        if row["phase"] in LIVE:
            connection.execute(
                "UPDATE jobs SET is_cancel_requested = 1, message = ? WHERE id = ?", (f"cancelled by {who}", job_id)
            )
    return find(home, job_id)


def is_alive(home: Path, job_id: str) -> bool:
    """Return whether some process of the job still runs."""
    try:
        handle = os.open(_lock_path(home, job_id), os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def reap(connection: sqlite3.Connection, home: Path) -> None:
    """Mark the jobs whose processes are gone as FAILED; the caller holds the transaction."""
    for row in connection.execute("SELECT number, id FROM jobs WHERE phase IN (?, ?)", LIVE).fetchall():
        if not is_alive(home, row["id"]):
            _finish(
                connection,
                row["number"],
                FAILED,
                "its processes ended without a result (killed, or the host went down)",
            )


def user_name() -> str:
    """Return the name of the user, or the number when there is no name for it."""
    import getpass  # reads the table of users; tables of jobs do without

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _finish(connection: sqlite3.Connection, number: int, phase: str, message: str) -> None:
    # A cancelled job may still end by itself; what was asked for is what the record says.
    connection.execute(
        "UPDATE jobs SET phase = CASE WHEN is_cancel_requested AND ? != 'SUCCEEDED' THEN 'CANCELLED' ELSE ? END, "
        "message = CASE WHEN is_cancel_requested THEN message ELSE ? END, finished_at = ? "
        "WHERE number = ? AND phase IN ('QUEUED', 'RUNNING')",
        (phase, phase, message, time.time(), number),
    )


def _read(connection: sqlite3.Connection, number: int) -> Job:
    row = connection.execute("SELECT * FROM jobs WHERE number = ?", (number,)).fetchone()
    if row is None:
        raise SystemStateError(f"there is no job {number}")
    return _job(row)


def _ahead_of(connection: sqlite3.Connection, me: Job) -> list[Job]:
    rows = connection.execute(
        "SELECT * FROM jobs WHERE system = ? AND phase IN ('QUEUED', 'RUNNING') AND number != ? "
        "AND (number < ? OR phase = 'RUNNING') ORDER BY number",
        (me.system, me.number, me.number),
    )
    return [_job(row) for row in rows]


def _alive(home: Path, queue: list[Job]) -> list[Job]:
    return [job for job in queue if is_alive(home, job.id)]


def _present(home: Path, job: Job) -> Job:
    if job.phase in LIVE and not is_alive(home, job.id):
        # Between the file's read and this look the job may have ended in the orderly way: read again.
        again = record(home, job.number)
        if again.phase in LIVE:
            return Job(**{**again.__dict__, "phase": CANCELLED if again.is_cancel_requested else FAILED})
        return again
    return job


def _job(row: sqlite3.Row) -> Job:
    values = dict(row)
    values["labels"] = json.loads(values["labels"])
    values["is_cancel_requested"] = bool(values["is_cancel_requested"])
    return Job(**values)
