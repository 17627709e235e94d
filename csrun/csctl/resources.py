"""Jobs, systems, nodes and volumes as csctl shows them: as a table, or as objects in the protocol's format."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cerebras_tensorflow.system import job_priority, jobs
from cerebras_tensorflow.text import did_you_mean, one_line
from cerebras_tensorflow.version import __version__

TYPES = ("cluster", "jobs", "nodegroups", "volumes", "version")
SINGULAR = {"job": "jobs", "nodegroup": "nodegroups", "volume": "volumes", "versions": "version", "clusters": "cluster"}
AUTHORITY = "cluster-server.cerebras.local"
NAMESPACE = "job-operator"
NO_WORKER_CACHE = "Nothing to clear: the workers of the simulated systems keep no cache"

NO_SWITCHES = "No switches: the simulated systems are processes of this machine"

Object = dict[str, Any]


class ResourceError(Exception):
    """The resource does not exist, or this user may not change it. The text is for the user."""


@dataclass(frozen=True)
class Resources:
    """The answer to a request, as a table and as objects.

    Attributes:
        columns: Names of the table's columns.
        rows: The table's cells, row by row.
        objects: The same resources as objects, with the protocol's field names in camel case.
        kind: Name of the protocol's message for one resource.
        is_single: Whether the request named one resource.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    objects: tuple[Object, ...]
    kind: str
    is_single: bool = False

    @property
    def content(self) -> Object:
        """The object itself, or the list of objects."""
        return self.objects[0] if self.is_single else {"items": list(self.objects)}


@dataclass(frozen=True)
class Filters:
    """Which resources a request selects, and their order.

    Attributes:
        all_states: Finished jobs too.
        user: Jobs of this user only.
        labels: Jobs with these labels only.
        system: Jobs of this system only.
        limit: At most so many of the newest jobs.
        errors_only: Failed jobs only.
        sort: Order of jobs: "age", or "priority", which is the order of the queue.
        is_descending: Whether that order is reversed.
        role: Of the cluster's parts: this role only.
    """

    all_states: bool = False
    user: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    system: str | None = None
    limit: int = 5000
    errors_only: bool = False
    sort: str = "age"
    is_descending: bool = False
    role: str = ""


def get(home: Path, kind: str, name: str = "", filters: Filters | None = None) -> Resources:
    """Return all resources of a type, or the one with the given name.

    Raises:
        ResourceError: If the type or the resource does not exist.
    """
    kind = SINGULAR.get(kind, kind)
    filters = filters or Filters()
    if kind == "jobs":
        return _jobs(home, name, filters)
    if kind == "cluster":
        return _cluster(home, filters.role)
    if kind == "nodegroups":
        group = {"meta": {"type": "nodegroup", "name": "nodegroup0"}, "status": {"nodeCount": 1}}
        return Resources(("NAME", "HAS/TOTAL", "NODES"), (("nodegroup0", "1/1", "1"),), (group,), "NodeGroup")
    if kind == "volumes":
        return _volumes(home)
    if kind == "version":
        info = {"meta": {"type": "version", "name": "cluster-server"}, "clusterServer": __version__}
        return Resources(("COMPONENT", "VERSION"), (("cluster-server", __version__),), (info,), "VersionInfo", True)
    raise ResourceError(
        f"resource type {kind} not found; expected one of {', '.join(TYPES)}{did_you_mean(kind, TYPES)}"
    )


def check_volumes(home: Path) -> Resources:
    """Return whether each volume can be given to --mount_dirs.

    Raises:
        ResourceError: If this site has no volumes.
    """
    from csrun import site

    objects: list[Object] = []
    for folder in site.read(home).mount_dirs:
        is_there = os.path.isdir(folder)
        is_valid = is_there and os.access(folder, os.R_OK | os.X_OK)
        objects.append(
            {
                "name": _volume_name(folder),
                "serverPath": folder,
                "containerPath": folder,
                "pathExists": is_there,
                "validMountDir": is_valid,
                "allowVenv": is_valid,
                "details": "" if is_valid else "may not be read" if is_there else "no such folder on this machine",
            }
        )
    if not objects:
        raise ResourceError(f"this site has no volumes; list them in {home}/site.conf, as in MOUNT_DIRS=/data,/scratch")
    # The published table omits pathExists.
    keys = [key for key in objects[0] if key != "pathExists"]
    rows = tuple(tuple(_cell(item[key]) for key in keys) for item in objects)
    return Resources(tuple(key.upper() for key in keys), rows, tuple(objects), "Volume")


def client_settings(address: str, authority: Mapping[str, str]) -> Object:
    """Return the published client's settings for a server: the content of its `--csconfig` file and of `config view`.

    Args:
        address: host:port of the server, or a URL.
        authority: Entries of the namespace that say how to check the server's certificate.
    """
    name = "simulated"
    cluster = {
        "name": name,
        "server": address,
        "authority": AUTHORITY,
        "namespaces": [{"name": NAMESPACE, **authority}],
    }
    return {"currentContext": name, "contexts": [{"name": name, "cluster": name}], "clusters": [cluster]}


def age(seconds: float) -> str:
    """Return a duration as the published tables write it: seconds to 2 minutes, minutes to 2 hours, hours to 2 days.

    A negative duration counts as 0: the clock has gone back since the job was made.

    >>> age(88), age(70 * 60), age(43 * 3600), age(5 * 86400)
    ('88s', '70m', '43h', '5d')
    """
    seconds = max(seconds, 0.0)
    for unit, size in (("s", 1), ("m", 60), ("h", 3600)):
        if seconds < 120 * size * (1 if unit != "h" else 0.4):
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds // 86400)}d"


def table(resources: Resources) -> str:
    """Return the columns, padded."""
    lines = [resources.columns, *resources.rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(resources.columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _jobs(home: Path, name: str, filters: Filters) -> Resources:
    if name:
        job = jobs.find(home, name)
        if job is None:
            raise ResourceError(f"job {name} not found")
        shown = [job]
    else:
        phases: tuple[str, ...] = (*jobs.LIVE, *jobs.FINISHED) if filters.all_states else jobs.LIVE
        if filters.errors_only:
            phases = (jobs.FAILED,)
        shown = [job for job in jobs.listed(home, phases, filters.system, filters.limit) if _is_wanted(job, filters)]
        shown = job_priority.order(shown) if filters.sort == "priority" else shown
        shown = shown[::-1] if filters.is_descending else shown
    now = time.time()
    rows = tuple(
        (job.id, age(now - job.created_at), job.phase, _wafers(job), job.user, _labels(job.labels)) for job in shown
    )
    return Resources(
        ("NAME", "AGE", "PHASE", "SYSTEMS", "USER", "LABELS"),
        tuple(tuple(one_line(cell) for cell in row) for row in rows),
        tuple(job_object(job) for job in shown),
        "Job",
        bool(name),
    )


def job_object(job: jobs.Job) -> Object:
    """Return a job with the fields of the protocol's message."""
    status: Object = {"phase": job.phase, "systems": [system for system in _wafers(job).split(",") if system]}
    if job.started_at is not None:
        status["executionTime"] = _timestamp(job.started_at)
    if job.finished_at is not None:
        status["completionTime"] = _timestamp(job.finished_at)
    if job.message:
        status["conditions"] = [{"type": job.phase, "message": job.message}]
    return {
        "meta": {
            "type": "job",
            "name": job.id,
            "createTime": _timestamp(job.created_at),
            "labels": dict(job.labels),
            "properties": {"command": job.description, "log": job.log, "executionMode": job.execution_mode},
        },
        "spec": {
            "user": {"uid": str(job.uid), "username": job.user},
            "type": "execute",
            "priority": job_priority.shown(job.priority),
        },
        "status": status,
    }


def _is_wanted(job: jobs.Job, filters: Filters) -> bool:
    return (filters.user is None or job.user == filters.user) and all(
        job.labels.get(key) == value for key, value in filters.labels.items()
    )


def _wafers(job: jobs.Job) -> str:
    return "" if job.phase == jobs.QUEUED else job.system


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def _timestamp(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _cluster(home: Path, role: str) -> Resources:
    from cerebras_tensorflow.system import registry  # slow to import; `get jobs` does not need it
    from cerebras_tensorflow.system.state import BOOTING, STANDBY

    live = jobs.listed(home, (jobs.RUNNING,))
    running = {name: job.id for job in live for name in jobs.systems_of(job.system)}
    cpu_percent = min(100.0, 100.0 * os.getloadavg()[0] / (os.cpu_count() or 1))
    memory_percent = 100.0 * (1 - _available_memory_fraction())
    node = os.uname().nodename
    rows = [(node, "worker", f"{cpu_percent:.2f}%", f"{memory_percent:.2f}%", "n/a", "ok", "")]
    objects: list[Object] = [
        {
            "meta": {"type": "node", "name": node},
            "role": "worker",
            "cpuLoadPercentage": cpu_percent,
            "memoryUsePercentage": memory_percent,
            "state": "ok",
        }
    ]
    now = time.time()
    for state in registry.listed(home):
        phase = state.phase(now)
        health = {STANDBY: "standby", BOOTING: "booting"}.get(phase, "ok")
        job_id = running.get(state.name, "")
        rows.append((state.name, "system", "n/a", "n/a", "in-use" if job_id else "free", health, job_id))
        objects.append(
            {
                "meta": {"type": "system", "name": state.name, "properties": {"executionMode": state.execution_mode}},
                "role": "system",
                "wseInUse": bool(job_id),
                "state": health,
                "jobId": job_id,
            }
        )
    columns = ("NAME", "TYPE", "CPU", "MEM", "SYSTEM", "STATE", "JOBID")
    kept = [number for number, item in enumerate(objects) if role in ("", item["role"])]
    return Resources(columns, tuple(rows[k] for k in kept), tuple(objects[k] for k in kept), "NodeInfo")


def _available_memory_fraction() -> float:
    values = {}
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        name, _, rest = line.partition(":")
        values[name] = float(rest.split()[0])
    return values["MemAvailable"] / values["MemTotal"]


def _volumes(home: Path) -> Resources:
    from csrun import site

    folders: Sequence[str] = site.read(home).mount_dirs
    rows = tuple((_volume_name(folder), "hostPath", folder, "", folder, "false") for folder in folders)
    objects = tuple(
        {
            "meta": {"type": "volume", "name": row[0], "labels": {"allow-venv": "true"}},
            "hostPath": {"containerPath": row[2]},
        }
        for row in rows
    )
    columns = ("NAME", "TYPE", "CONTAINERPATH", "SERVER", "SERVERPATH", "READONLY")
    return Resources(columns, rows, objects, "Volume")


def _volume_name(folder: str) -> str:
    return folder.strip("/").replace("/", "-")


def _cell(value: str | bool) -> str:
    return value if isinstance(value, str) else str(value).lower()
