"""One job: its record, its folder, and whether it is alive."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import string
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cerebras_tensorflow.system import alive
from cerebras_tensorflow.text import printable

QUEUED = "QUEUED"
RUNNING = "RUNNING"
SUCCEEDED = "SUCCEEDED"
FAILED = "FAILED"
CANCELLED = "CANCELLED"
LIVE = (QUEUED, RUNNING)
FINISHED = (SUCCEEDED, FAILED, CANCELLED)
DEFAULT_PRIORITY = 299

ID_LETTERS = string.ascii_lowercase + string.digits
ID_PATTERN = re.compile(r"wsjob-[a-z0-9]{22}")
"""Records with other ids are ignored. They were not made by us, and an id becomes part of a path."""


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
    priority: int = DEFAULT_PRIORITY


def joined(systems: Iterable[str]) -> str:
    """Return the field `system` of a job that takes several systems: their names, sorted, separated by commas."""
    return ",".join(sorted(set(systems)))


def systems_of(text: str) -> frozenset[str]:
    """Return the names of the systems in a job's field `system`.

    >>> sorted(systems_of("cs2-a,cs2-b"))
    ['cs2-a', 'cs2-b']
    """
    return frozenset(text.split(","))


def job_folder(home: Path, job_id: str) -> Path:
    """Return the folder of one job."""
    return home / "jobs" / job_id


def lock_path(home: Path, job_id: str) -> Path:
    """Return the path of the file whose lock shows that a job is alive."""
    return home / "jobs" / f"{job_id}.alive"


def new_id() -> str:
    """Return an id in the published shape: `wsjob-` and 22 letters and digits."""
    import secrets  # slow to import; only a launch needs it

    return "wsjob-" + "".join(secrets.choice(ID_LETTERS) for _ in range(22))


def new_job(
    number: int,
    job_id: str,
    folder: Path,
    system: str,
    execution_mode: str,
    description: str,
    labels: Mapping[str, str],
    user: str | None,
) -> Job:
    """Return a new record, QUEUED, of a job of this process. Its texts are made safe for files and terminals."""
    return Job(
        number=number,
        id=job_id,
        system=system,
        execution_mode=execution_mode,
        user=printable(user or user_name()),
        uid=os.getuid(),
        host=os.uname().nodename,
        pid=os.getpid() if user is None else 0,
        phase=QUEUED,
        description=printable(description),
        log=str(folder / "output.log"),
        message="",
        is_cancel_requested=False,
        created_at=time.time(),
        started_at=None,
        finished_at=None,
        labels={printable(key): printable(value) for key, value in labels.items()},
    )


def is_alive(home: Path, job_id: str) -> bool:
    """Return whether a process of the job still runs."""
    return bool(ID_PATTERN.fullmatch(job_id)) and alive.is_held(lock_path(home, job_id))


def send_signal(home: Path, job: Job, number: signal.Signals) -> bool:
    """Signal the process that started a job if it is alive, and return whether it was signalled."""
    return job.pid > 1 and is_alive(home, job.id) and alive.send_signal(lock_path(home, job.id), job.pid, number)


def user_name() -> str:
    """Return the name of this user; the user id if it has no name."""
    import getpass  # slow to import; listing jobs does not need it

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def from_row(row: sqlite3.Row) -> Job:
    """Return a job from its row of the table."""
    values = dict(row)
    values["labels"] = labels_of(values["labels"])
    values["is_cancel_requested"] = bool(values["is_cancel_requested"])
    return Job(**values)


def labels_of(text: str) -> dict[str, str]:
    """Return the labels of a record whose values are text. Malformed labels are dropped, so that lists still work."""
    try:
        labels = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return {}
    if not isinstance(labels, dict):
        return {}
    return {key: value for key, value in labels.items() if isinstance(value, str)}
