"""What csctl does to a job: cancel it, label it, export its log."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import stat
import time
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from cerebras_tensorflow import files
from cerebras_tensorflow.system import job_priority, jobs
from csrun.csctl.resources import ResourceError, job_object
from csrun.executors.embedded import CANCEL_GRACE_S

KILL_AFTER_S = CANCEL_GRACE_S + 2.0
POLL_S = 0.1
MAX_LABELS = 64
LABEL_PATTERN = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?")


def request_cancel(home: Path, job_id: str, who: str) -> jobs.Job:
    """Ask a job to save and stop, and return it. The launcher kills it if it still runs after CANCEL_GRACE_S.

    Raises:
        ResourceError: If the job does not exist, has ended, runs on another host, or belongs to another user.
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
    """Wait until a job stops that was asked to; kill it after KILL_AFTER_S."""
    deadline = time.monotonic() + KILL_AFTER_S
    while jobs.is_alive(home, job.id) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    jobs.send_signal(home, job, signal.SIGKILL)


def label(home: Path, job_id: str, changes: Mapping[str, str | None]) -> jobs.Job:
    """Return the job after changing its labels; None removes one.

    Raises:
        ResourceError: If the job does not exist, or a label is malformed.
    """
    if not isinstance(changes, Mapping) or len(changes) > MAX_LABELS:
        raise ResourceError(f"labels are at most {MAX_LABELS} pairs of a key and a text")
    for key, value in changes.items():
        # JSON values may have any type.
        is_text = value is None or value == "" or (isinstance(value, str) and LABEL_PATTERN.fullmatch(value))
        if not isinstance(key, str) or not LABEL_PATTERN.fullmatch(key) or not is_text:
            raise ResourceError(f"{key}={value} is not a label: letters, digits, dot, dash, underscore, at most 63")
    job = jobs.set_labels(home, job_id, changes)
    if job is None:
        raise ResourceError(f"job {job_id} not found")
    return job


def set_priority(home: Path, job_id: str, priority: int, uid: int) -> None:
    """Set the priority of a job, for a user.

    Raises:
        ResourceError: If the job does not exist, has ended, or the user may not change it so.
    """
    refusal = job_priority.change(home, job_id, priority, uid)
    if refusal is not None:
        raise ResourceError(refusal)


def export_log(home: Path, job_id: str, target: Path) -> Path:
    """Write the job's record and log as a zip archive into a folder, and return its path.

    Raises:
        ResourceError: If the job does not exist, or its log cannot be read.
    """
    job = jobs.find(home, job_id)
    if job is None:
        raise ResourceError(f"job {job_id} not found")
    path = target / f"{job.id}.zip"  # safe: `find` returns only ids of our form
    draft = None
    try:
        draft = files.open_new(path.with_suffix(f".{os.getpid()}.partial"), 0o600)
        with open(draft, "w+b", closefd=False) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("job.json", json.dumps(job_object(job), indent=2, sort_keys=True))
            for name, content in _logs(jobs.job_folder(home, job.id), job.uid):
                with content, archive.open(name, "w") as entry:
                    shutil.copyfileobj(content, entry)
        files.put_in_place(draft, path.with_suffix(f".{os.getpid()}.partial"), path)
    except OSError as exc:
        path.with_suffix(f".{os.getpid()}.partial").unlink(missing_ok=True)
        raise ResourceError(f"cannot export the log of job {job_id}: {exc}") from exc
    finally:
        if draft is not None:
            os.close(draft)
    return path


def _logs(folder: Path, uid: int) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the logs of a job and the records of its tasks, with their names relative to the folder.

    The servers' address files are left out, because they hold tokens. Only regular files of the job's own user are
    read: a link in the folder may point anywhere, and reading a pipe may never end.
    """
    if folder.is_symlink() or not folder.is_dir():
        raise FileNotFoundError(errno.ENOENT, "the folder does not exist", str(folder))
    for place, _, names, handle in os.fwalk(folder, onerror=_raise, follow_symlinks=False):
        for name in sorted(names):
            if not (name.endswith(".log") or (name.startswith("task-") and name.endswith(".json"))):
                continue
            try:
                file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=handle)
            except OSError as exc:
                if exc.errno in (errno.ELOOP, errno.ENXIO, errno.ENOENT):
                    continue
                raise
            status = os.fstat(file)
            if stat.S_ISREG(status.st_mode) and status.st_uid == uid and status.st_nlink == 1:
                yield str(Path(place, name).relative_to(folder)), os.fdopen(file, "rb")
            else:
                os.close(file)


def _raise(error: OSError) -> None:
    raise error
