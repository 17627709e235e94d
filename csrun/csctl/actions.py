"""What csctl does to a job: cancel it, label it, export its log."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from cerebras_tensorflow.system import jobs
from csrun.csctl.resources import ResourceError, job_object
from csrun.executors.embedded import CANCEL_GRACE_S

KILL_AFTER_S = CANCEL_GRACE_S + 2.0
POLL_S = 0.1
LABEL_PATTERN = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?")


def request_cancel(home: Path, job_id: str, who: str) -> jobs.Job:
    """Ask a job to save and stop, and return it; the launcher kills it when it has not stopped after CANCEL_GRACE_S.

    Raises:
        ResourceError: If there is no such job, it has ended, it runs on another host, or belongs to another user.
    """
    job = jobs.find(home, job_id)
    if job is None:
        raise ResourceError(f"job {job_id} not found")
    if job.phase in jobs.FINISHED:
        raise ResourceError(f"job {job_id} has ended already: {job.phase}")
    if job.host != os.uname().nodename:
        raise ResourceError(f"job {job_id} was started on {job.host}; cancel it there")
    if os.getuid() not in (0, job.uid):
        raise ResourceError(f"job {job_id} belongs to {job.user}")
    jobs.request_cancel(home, job_id, who)
    jobs.send_signal(home, job, signal.SIGTERM)
    return job


def finish_cancel(home: Path, job: jobs.Job) -> None:
    """Return once a job that was asked to stop has stopped; kill it after KILL_AFTER_S."""
    deadline = time.monotonic() + KILL_AFTER_S
    while jobs.is_alive(home, job.id) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    jobs.send_signal(home, job, signal.SIGKILL)


def label(home: Path, job_id: str, changes: Mapping[str, str | None]) -> jobs.Job:
    """Return the job after changing its labels; None removes one.

    Raises:
        ResourceError: If there is no such job or a label is malformed.
    """
    for key, value in changes.items():
        if not LABEL_PATTERN.fullmatch(key) or (value and not LABEL_PATTERN.fullmatch(value)):
            raise ResourceError(f"{key}={value} is not a label: letters, digits, dot, dash, underscore, at most 63")
    job = jobs.set_labels(home, job_id, changes)
    if job is None:
        raise ResourceError(f"job {job_id} not found")
    return job


def export_log(home: Path, job_id: str, target: Path) -> Path:
    """Write the job's record and log as a zip archive into a folder, and return its path.

    Raises:
        ResourceError: If there is no such job, or its log may not be read.
    """
    job = jobs.find(home, job_id)
    if job is None:
        raise ResourceError(f"job {job_id} not found")
    import zipfile

    path = target / f"{job.id}.zip"
    try:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("job.json", json.dumps(job_object(job), indent=2, sort_keys=True))
            folder = jobs.job_folder(home, job.id)
            # Logs and what became of the tasks; not how they find each other, which holds a token.
            for file in sorted(folder.rglob("*")):
                if file.suffix == ".log" or file.name.startswith("task-"):
                    archive.write(file, file.relative_to(folder))
    except OSError as exc:
        path.unlink(missing_ok=True)
        raise ResourceError(f"cannot export the log of job {job_id}: {exc}") from exc
    return path
