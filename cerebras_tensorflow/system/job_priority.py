"""Priorities of jobs, P0 to P3 as in the published documents: the waiting job with the lowest number goes first."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

from cerebras_tensorflow.system import database, jobs
from cerebras_tensorflow.system.job import FINISHED, Job

_BUCKET = 100
_HIGHEST, _LOWEST = 1, 399  # 1 to 99 is P0, for administrators; 100 to 199 P1, to 299 P2, to 399 P3
_ADMINISTRATOR = 0


def parse(text: str) -> int:
    """Return the number of a priority: a number, or a bucket, whose last number it gets.

    >>> parse("p1"), parse("P3"), parse("150")
    (199, 399, 150)

    Raises:
        ValueError: If it is neither.
    """
    bucket = re.fullmatch(r"[pP]([0-3])", text)
    number = int(bucket[1]) * _BUCKET + _BUCKET - 1 if bucket else int(text) if re.fullmatch(r"\d{1,3}", text) else 0
    if not _HIGHEST <= number <= _LOWEST:
        raise ValueError(
            f"priority {text!r}: expected p1, p2, p3 or a number from {_BUCKET} to {_LOWEST}; "
            f"an administrator may also give p0 or a number from {_HIGHEST} to {_BUCKET - 1}"
        )
    return number


def shown(priority: int) -> str:
    """Return a priority as the published tables show it.

    >>> shown(299)
    'P2 (299)'
    """
    return f"P{priority // _BUCKET} ({priority})"


def change(home: Path, job_id: str, priority: int, uid: int) -> str | None:
    """Set the priority of a job that has not ended; return None, or the reason why it may not be changed.

    Args:
        home: Folder of the simulated systems.
        job_id: The job.
        priority: The new priority.
        uid: User who asks. An administrator may change every job and use P0; others change their own jobs.
    """
    with database.transaction(jobs.jobs_file(home)) as connection:
        row = connection.execute("SELECT * FROM jobs WHERE id = ?", (job_id,)).fetchone()
        reason = _refusal(row, job_id, priority, uid)
        if reason is None:
            connection.execute("UPDATE jobs SET priority = ? WHERE id = ?", (priority, job_id))
    return reason


def _refusal(row: sqlite3.Row | None, job_id: str, priority: int, uid: int) -> str | None:
    if row is None:
        return f"job {job_id} not found"
    if row["phase"] in FINISHED:
        return f"job {job_id} has ended; only the priority of a waiting or running job can change"
    if uid != _ADMINISTRATOR and row["uid"] != uid:
        return f"job {job_id} belongs to {row['user']}"
    if uid != _ADMINISTRATOR and priority < _BUCKET:
        return "P0 is for administrators"
    return None


def order(found: list[Job]) -> list[Job]:
    """Return jobs in the order of their priority; equal ones by age, oldest first."""
    return sorted(found, key=lambda job: (job.priority, job.number))
