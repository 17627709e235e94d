"""The lock that shows that a job is alive: its processes hold it, and any user can check it without disturbing it.

It is an open-file-description lock for writing. The kernel releases it when the last process of the job ends, even by
kill -9. Other users may only read the file, so they cannot take this lock and block the queue. A check takes no lock.
"""

from __future__ import annotations

import fcntl
import os
import signal
import struct
from contextlib import suppress
from pathlib import Path

_LOCK = "hhqqi4x"
"""struct flock: type, whence, start, length, process; start and length 0 mean the whole file."""


def hold(path: Path) -> int:
    """Create and lock a file, and return its descriptor. A process that inherits it keeps the job alive too."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    os.fchmod(handle, 0o644)  # other users of a shared home check the lock, so the umask must not apply
    fcntl.fcntl(handle, fcntl.F_OFD_SETLK, struct.pack(_LOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    return handle


def is_held(path: Path) -> bool:
    """Return whether a process holds the lock. If that is unknown return True, so that no job is overtaken."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        asked = struct.pack(_LOCK, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
        kind, *_ = struct.unpack(_LOCK, fcntl.fcntl(handle, fcntl.F_OFD_GETLK, asked))
    except OSError:
        return True
    finally:
        os.close(handle)
    return bool(kind == fcntl.F_WRLCK)


def send_signal(path: Path, pid: int, number: signal.Signals) -> bool:
    """Signal a process if it has the lock's file open, and return whether it was signalled.

    The record of a job can name the wrong process: its process id may be forged, or may have been reused.
    """
    try:
        process = os.pidfd_open(pid)
    except (OSError, OverflowError):
        return False
    try:
        # The descriptor refers to one process, so the process id cannot be reused between the check and the signal.
        if not _has_open(pid, path):
            return False
        signal.pidfd_send_signal(process, number)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        os.close(process)
    return True


def _has_open(pid: int, path: Path) -> bool:
    try:
        wanted = os.stat(path, follow_symlinks=False)
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    for name in names:
        with suppress(OSError):
            if os.path.samestat(os.stat(f"/proc/{pid}/fd/{name}"), wanted):
                return True
    return False
