"""Whether the processes of a run on several CSX are alive, by files in a folder that all of them see.

Each process holds a lock on its file as long as it lives, and renews the file's time every second. So a process that
ended and one that hangs can be told apart, on any host. If the file cannot be locked, only its time counts: such a
process has ended when it has given no sign for long.
"""

from __future__ import annotations

import fcntl
import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

from cerebras_tensorflow import files
from cerebras_tensorflow.config import env
from cerebras_tensorflow.runtime.collectives.shared_files import end_at_once
from cerebras_tensorflow.runtime.host import stopping

_PERIOD_S = 1.0
_NO_LOCK = b" without a lock"
FIRST_FILE, MPI_LOG = "first", "mpi.log"


def host_name() -> str:
    """Return the name of this host, for messages and to compare hosts: in a Slurm job that of the node."""
    return env.read().slurm_node or socket.gethostname()


def rank_file(folder: Path, rank: int) -> Path:
    """Return the file of a rank."""
    return folder / f"rank-{rank}"


def log_file(folder: Path, rank: int) -> Path:
    """Return the log of a rank: of rank 0, that of MPI."""
    return folder / (f"rank-{rank}.log" if rank else MPI_LOG)


def error_file(folder: Path, rank: int) -> Path:
    """Return the file in which a rank says why it failed."""
    return folder / f"rank-{rank}.error"


def describe(folder: Path, rank: int, what: str) -> str:
    """Return a sentence that says what happened to a rank, with its host and its log."""
    try:
        host = rank_file(folder, rank).read_text(encoding="utf-8").split()[0]
    except (OSError, IndexError):
        host = "an unknown host"
    return f"rank {rank} on {host} {what.removesuffix('.')}. Its log is {log_file(folder, rank)}."


class Sign:
    """The sign of life of this process, until `close` or its end.

    Args:
        path: The file. It gets the host and the process id.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        has_lock = files.lock(self._fd)
        os.write(self._fd, f"{host_name()} {os.getpid()}".encode() + (b"" if has_lock else _NO_LOCK))
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="cs_sign", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the sign."""
        if not self._ended.is_set():
            self._ended.set()
            self._thread.join()
            os.close(self._fd)

    def _renew(self) -> None:
        while not self._ended.wait(_PERIOD_S):
            with suppress(OSError):
                os.utime(self._fd)


def has_ended(path: Path) -> bool:
    """Whether the process of a file has ended, after it has written the file."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        content = os.pread(fd, 1000, 0)
        return bool(content) and not content.endswith(_NO_LOCK)
    except OSError:
        return False
    finally:
        os.close(fd)


def _is_removed(path: Path) -> bool:
    try:
        path.stat()
    except FileNotFoundError:
        return True
    except OSError:  # of a network file system
        return False
    return False


def exit_with(path: Path, code: int) -> None:
    """Start a thread that ends this process when the process of a file has ended, or somebody has removed the file."""

    def watch() -> None:
        while not (has_ended(path) or _is_removed(path)):
            time.sleep(_PERIOD_S / 2)
        end_at_once(code)

    threading.Thread(target=watch, name="cs_watch", daemon=True).start()


class Watch:
    """Finds a rank that has ended or hangs.

    Args:
        folder: Folder of the files.
        size: Number of ranks. The file of rank 0 is that of the process that moves the caller's bytes.
        limit_s: How long a file may stay the same before its rank hangs [s]. After a signal to stop it is shorter.
    """

    def __init__(self, folder: Path, size: int, limit_s: float) -> None:
        self._folder = folder
        self._size = size
        self._limit = limit_s
        self._seen: dict[int, tuple[int, float]] = {}  # rank -> time of its file, seconds without a change
        self._checked_at = time.monotonic()

    def failure(self) -> str | None:
        """Return what is wrong with a rank: its number, host, log and reason; None if nothing is."""
        first = self._ended()
        if first:
            time.sleep(_PERIOD_S / 2)  # others fail because the first one did; all reasons are there now
            reasons = [(*self._why_ended(rank), rank not in first) for rank in self._ended()]
            return min(reasons, key=lambda reason: (reason[0], reason[2]))[1]
        return self.hanging()

    def _ended(self) -> list[int]:
        return [rank for rank in range(self._size) if has_ended(rank_file(self._folder, rank))]

    def places(self) -> list[tuple[str, int]]:
        """Return the host and process id of each rank that has started."""
        found = []
        for rank in range(self._size):
            with suppress(OSError, ValueError):
                host, pid = rank_file(self._folder, rank).read_text(encoding="utf-8").split()
                found.append((host, int(pid)))
        return found

    def _why_ended(self, rank: int) -> tuple[int, str]:
        """Return (order of the reason, text).

        A rank that only lost another one comes late, and rank 0 last: MPI may end it because another one ended.
        """
        reason = ""
        with suppress(OSError):
            reason = error_file(self._folder, rank).read_text(encoding="utf-8")
        if not reason:
            text = "ended without an error: killed, out of memory, or unable to write to its disk"
            return 1 if rank else 3, describe(self._folder, rank, text)
        order = 2 if reason.startswith("CollectiveError") else 0
        return order, describe(self._folder, rank, f"failed: {reason}")

    def hanging(self) -> str | None:
        """Return which rank gives no sign of life; None if all do."""
        limit = min(self._limit, stopping.ANSWER_LIMIT_S) if stopping.requested.is_set() else self._limit
        now = time.monotonic()
        passed = min(now - self._checked_at, 2 * _PERIOD_S)  # this process itself may have been stopped
        self._checked_at = now
        for rank in range(self._size):
            with suppress(OSError):
                changed = rank_file(self._folder, rank).stat().st_mtime_ns
                before, waited = self._seen.get(rank, (changed, 0.0))
                self._seen[rank] = (changed, waited + passed if changed == before else 0.0)
        silent = max(self._seen, key=lambda rank: self._seen[rank][1], default=0)
        if silent not in self._seen or self._seen[silent][1] <= limit:
            return None
        return describe(self._folder, silent, f"hangs: no sign of life for {limit:g} s")
