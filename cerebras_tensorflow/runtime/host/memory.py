"""How much memory is free, and how much this process takes."""

from __future__ import annotations

import resource

from cerebras_tensorflow.errors import CerebrasError


def free_memory_bytes() -> int:
    """Return the memory that the system can still give to programs [B]."""
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    raise CerebrasError("/proc/meminfo has no MemAvailable; set weight_store to memory or file in the csconfig section")


def resident_bytes() -> int:
    """Return the memory that the process takes now [B], or its peak if the system does not report the current value."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
