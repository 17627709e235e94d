"""The files through which MPI shares memory. MPI removes them at an orderly end only; a killed process leaves them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

_FOLDER = "/dev/shm/"
_PREFIXES = ("mpich_shm_", "vader_segment.", "sm_segment.")  # MPICH; Open MPI
_REMOVED = " (deleted)"


def shared_files(process: int | str = "self") -> set[str]:
    """Return the files through which a process of this machine shares memory with other processes of MPI."""
    found: set[str] = set()
    with suppress(OSError), open(f"/proc/{process}/maps", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            _, folder, name = line.rstrip("\n").partition(_FOLDER)
            if folder and name.startswith(_PREFIXES) and not name.endswith(_REMOVED):
                found.add(folder + name)
    return found


def remove(paths: Iterable[str]) -> None:
    """Remove files. Processes that have mapped them keep their memory."""
    for path in paths:
        with suppress(OSError):
            os.unlink(path)


def end_at_once(code: int) -> None:
    """End this process without MPI's orderly end, and leave no file."""
    remove(shared_files())
    os._exit(code)
