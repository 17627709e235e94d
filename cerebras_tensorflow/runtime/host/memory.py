"""How much memory is free, and how much this process takes."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

from cerebras_tensorflow.errors import CerebrasError

_CGROUPS = Path("/sys/fs/cgroup")
_PROCESS = Path("/proc/self/cgroup")


def free_memory_bytes() -> int:
    """Return the memory that the system can still give to this process [B].

    This is the free memory of the machine, or what is left below the memory limit of a cgroup (a container, a Slurm
    step). Pages of files count as free, since the kernel drops them when memory is short.
    """
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return min([int(line.split()[1]) * 1024, *_left_in_cgroups(_PROCESS, _CGROUPS)])
    raise CerebrasError("/proc/meminfo has no MemAvailable; set weight_store to memory or file in the csconfig section")


def _left_in_cgroups(process: Path, root: Path) -> Iterator[int]:
    """Yield what is left below the memory limit of each cgroup of a process [B], for versions 1 and 2.

    Args:
        process: The file that lists the cgroups.
        root: Where cgroups are mounted.
    """
    try:
        lines = process.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            top, limit, usage, cached = root, "memory.max", "memory.current", "inactive_file"
        elif "memory" in controllers.split(","):
            top, limit, usage, cached = (
                root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file",
            )  # fmt: skip
        else:
            continue
        group = top / path.lstrip("/")
        for folder in (group, *(parent for parent in group.parents if top in (parent, *parent.parents))):
            left = _left(folder, limit, usage, cached)
            if left is not None:
                yield left


def _left(folder: Path, limit: str, usage: str, cached: str) -> int | None:
    """Return what is left in one cgroup [B]. None if it has no limit, or none that this process can see.

    Args:
        folder: The cgroup.
        limit: Name of the file with its limit.
        usage: Name of the file with the memory that it uses.
        cached: Key, in memory.stat, of the bytes that the kernel can drop.
    """
    try:
        most = int((folder / limit).read_text())
        used = int((folder / usage).read_text())
        pairs = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
        droppable = next((int(value) for key, value in pairs if key == cached), 0)
    except (OSError, ValueError):  # "max" is no limit
        return None
    return max(0, most - used + droppable)


def resident_bytes() -> int:
    """Return the memory that the process takes now [B], or its peak if the system does not report the current value."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
