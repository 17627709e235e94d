"""The settings of a site for all its users: sizes of a launch, mounts, resources, the executor.

The file is `site.conf` in CEREBRAS_HOME, else /etc/cerebras/site.conf. Its lines are NAME=VALUE, with the names at the
top of the original csrun_cpu script. Without a file, the defaults fit this machine.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from cerebras_tensorflow.errors import SettingsError
from cerebras_tensorflow.text import is_number

SYSTEM_FILE = Path("/etc/cerebras/site.conf")
EXECUTORS = ("auto", "embedded", "slurm")
NUMBERS = {"DEF_NODES": 1, "DEF_TASKS_PER_NODE": 1, "DEF_CPUS_PER_TASK": 1, "LOCAL_TASKS": 0}
"""Names whose value is a number, and the smallest value of each."""
TEXTS = ("SINGULARITY_IMAGE", "GRES_RESOURCE", "GRES_NODE", "EXECUTOR")
MOST_LOCAL_TASKS = 8


@dataclass(frozen=True)
class Site:
    """Settings of a site.

    Attributes:
        nodes: Nodes of a launch (DEF_NODES).
        tasks_per_node: Tasks on each node (DEF_TASKS_PER_NODE).
        cpus_per_task: CPUs for each task (DEF_CPUS_PER_TASK).
        mount_dirs: Folders to mount in a container, besides the current one (MOUNT_DIRS, separated by commas).
        image: Container image; empty: no container (SINGULARITY_IMAGE).
        gres: Slurm's name of the CS system as a resource; empty if there is none (GRES_RESOURCE).
        gres_node: Node with the CS system, which csrun_cpu does not use; empty if there is none (GRES_NODE).
        executor: auto, embedded or slurm (EXECUTOR, ours).
        local_tasks: Most input workers, and most weight servers, that the embedded executor starts (LOCAL_TASKS, ours).
        source: The file, or a text that says where the defaults come from.
    """

    nodes: int
    tasks_per_node: int
    cpus_per_task: int
    mount_dirs: tuple[str, ...]
    image: str
    gres: str
    gres_node: str
    executor: str
    local_tasks: int
    source: str


def read(home: Path) -> Site:
    """Return the settings of this site.

    Raises:
        SettingsError: If the file has an unknown name or a wrong value; the text names the file and the line.
    """
    path = next((path for path in (home / "site.conf", SYSTEM_FILE) if path.is_file()), None)
    if path is None:
        return parse("", "this machine (there is no site.conf)")
    return parse(path.read_text(encoding="utf-8", errors="surrogateescape"), str(path))


def parse(text: str, source: str) -> Site:
    """Return the settings in a file's text; missing ones get this machine's defaults."""
    values: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            words = shlex.split(line, comments=True)
        except ValueError as exc:
            raise SettingsError(f"{source}, line {number}: {exc}: {line!r}") from exc
        if not words:
            continue
        if words[0] == "export":
            del words[0]
        name, separator, value = words[0].partition("=") if words else ("", "", "")
        if not separator or len(words) > 1:
            raise SettingsError(f"{source}, line {number}: expected NAME=VALUE, not {line!r}")
        known = (*NUMBERS, *TEXTS, "MOUNT_DIRS")
        if name not in known:
            raise SettingsError(
                f"{source}, line {number}: unknown name {name!r}; expected one of {', '.join(sorted(known))}"
            )
        values[name] = value
    for name, least in NUMBERS.items():
        if name in values and (not is_number(values[name]) or int(values[name]) < least):
            raise SettingsError(f"{source}: {name}={values[name]!r}: expected a number from {least}")
    executor = values.get("EXECUTOR", "auto")
    if executor not in EXECUTORS:
        raise SettingsError(f"{source}: EXECUTOR={executor!r}: expected one of {', '.join(EXECUTORS)}")
    cpus = len(os.sched_getaffinity(0))
    return Site(
        nodes=int(values.get("DEF_NODES", 1)),
        tasks_per_node=int(values.get("DEF_TASKS_PER_NODE", 1)),
        cpus_per_task=int(values.get("DEF_CPUS_PER_TASK", cpus)),
        mount_dirs=split_folders(values.get("MOUNT_DIRS", "")),
        image=values.get("SINGULARITY_IMAGE", ""),
        gres=values.get("GRES_RESOURCE", ""),
        gres_node=values.get("GRES_NODE", ""),
        executor=executor,
        local_tasks=int(values.get("LOCAL_TASKS", min(cpus, MOST_LOCAL_TASKS))),
        source=source,
    )


def split_folders(text: str) -> tuple[str, ...]:
    """Return the folders of a comma-separated list.

    >>> split_folders("/data, /scratch,")
    ('/data', '/scratch')
    """
    return tuple(folder.strip() for folder in text.split(",") if folder.strip())
