"""Checks before the first step that a run's files fit on their disks. The error says how much space is missing."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cerebras_tensorflow.errors import StoreError
from cerebras_tensorflow.holes import fallocate
from cerebras_tensorflow.units import format_bytes

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@dataclass(frozen=True)
class Need:
    """Bytes that a run is going to write.

    Attributes:
        what: What is written, such as "the weight store".
        folder: Where it is written. The folder need not exist yet.
        num_bytes: Size [B].
        setting: The setting that chooses another folder, such as "weight_store_dir".
    """

    what: str
    folder: Path
    num_bytes: int
    setting: str


def check_space(needs: Sequence[Need]) -> None:
    """Check that every disk has room for everything that the run will write to it.

    Raises:
        StoreError: If a disk has too little space. Its text lists what is needed, what is free and what is missing.
    """
    disks: dict[int, list[Need]] = {}
    for need in needs:
        disks.setdefault(os.stat(_existing(need.folder)).st_dev, []).append(need)
    for group in disks.values():
        needed = sum(need.num_bytes for need in group)
        free = free_bytes(_existing(group[0].folder))
        if needed > free:
            parts = " and ".join(f"{need.what} needs {format_bytes(need.num_bytes)} in {need.folder}" for need in group)
            same = ", on the same disk" if len(group) > 1 else ""
            raise StoreError(
                f"{parts}{same}, which has {format_bytes(free)} free; free {format_bytes(needed - free)}, or choose "
                f"another folder with {' or '.join(dict.fromkeys(need.setting for need in group))}"
            )


def space_text(needs: Sequence[Need]) -> str:
    """Return a sentence about the disk space that a run needs, and what is free.

    Args:
        needs: What the run writes; at least one.
    """
    parts = " and ".join(f"{need.what} takes up to {format_bytes(need.num_bytes)} in {need.folder}" for need in needs)
    free = ", ".join(dict.fromkeys(f"{format_bytes(free_bytes(_existing(need.folder)))} free" for need in needs))
    return f"Disk: {parts}; {free}."


def free_bytes(folder: Path) -> int:
    """Return the bytes that a process without privileges can still write on a folder's disk."""
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


def reserve(file: int, offset: int, num_bytes: int) -> None:
    """Reserve space for a part of a file, so that a full disk fails now and not in the middle of a step.

    Does nothing if the file system cannot reserve space.

    Raises:
        OSError: If the disk is full.
    """
    code = fallocate(file, 0, offset, num_bytes) if num_bytes else 0
    if code in FULL:
        raise OSError(code, os.strerror(code))


def _existing(folder: Path) -> Path:
    """Return the folder, or the nearest folder above it that exists."""
    folder = folder.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
