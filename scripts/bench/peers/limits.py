"""One memory limit for a process and its children (cgroup version 1 or 2), a swap file, and what the disk moved."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_SECTOR_BYTES = 512  # of /proc/diskstats, whatever the disk's own sectors are


@contextlib.contextmanager
def memory_limit(limit_bytes: int) -> Iterator[Path]:
    """Make a cgroup with a memory limit; swap is not limited. Yield its folder; remove it at the end.

    Raises:
        SystemExit: If this user may not make one.
    """
    is_second = (_ROOT / "cgroup.controllers").exists()
    group = (_ROOT if is_second else _ROOT / "memory") / f"bench_peers_{os.getpid()}_{secrets.token_hex(3)}"
    try:
        group.mkdir()
        (group / ("memory.max" if is_second else "memory.limit_in_bytes")).write_text(str(limit_bytes))
    except OSError as error:
        raise SystemExit(f"cannot make a cgroup with a memory limit ({error}); run this benchmark as root") from error
    try:
        yield group
    finally:
        kill(group)
        with contextlib.suppress(OSError):
            group.rmdir()


def inside(group: Path) -> list[str]:
    """Return the words before a command that run it in a cgroup."""
    return ["/bin/sh", "-c", f'echo $$ > "{group}/cgroup.procs" && exec "$@"', "sh"]


def kill(group: Path) -> None:
    """Kill what still runs in a cgroup, and wait for its end."""
    for _ in range(100):
        processes = (group / "cgroup.procs").read_text().split() if group.exists() else []
        if not processes:
            return
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)
        time.sleep(0.1)


def peak_bytes(group: Path) -> int:
    """Return the most memory that a cgroup had, with page cache [B]; 0 if the kernel does not count it."""
    for name in ("memory.peak", "memory.max_usage_in_bytes"):
        if (group / name).exists():
            return int((group / name).read_text())
    return 0


def disk_bytes(folder: Path) -> int:
    """Return the bytes that the disk of a folder has read and written since the start of the machine."""
    device = os.stat(folder).st_dev
    for line in Path("/proc/diskstats").read_text().splitlines():
        words = line.split()
        if (int(words[0]), int(words[1])) == (os.major(device), os.minor(device)):
            return _SECTOR_BYTES * (int(words[5]) + int(words[9]))
    return 0


@contextlib.contextmanager
def swap(folder: Path, num_bytes: int | None) -> Iterator[None]:
    """Add a swap file for the block; None: the swap of the machine stays as it is."""
    if num_bytes is None:
        yield
        return
    path = folder / f"bench_peers_{os.getpid()}.swap"
    try:
        with open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            os.posix_fallocate(file.fileno(), 0, num_bytes)
        for words in (["mkswap", str(path)], ["swapon", str(path)]):
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        yield
    finally:
        subprocess.run(["swapoff", str(path)], check=False, stdout=sys.stderr)
        path.unlink(missing_ok=True)
