"""The lock by which a job is alive: held by its processes, seen by everybody, disturbed by nobody else.

An open-file-description lock for writing. The kernel releases it when the last process of the job has ended, even by
kill -9. Only users who may write the file can take one, so a reader's lock blocks no queue; asking takes no lock.
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
    """Return a file descriptor that holds the lock of a new file; who inherits it keeps the job alive too."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    os.fchmod(handle, 0o644)  # other users of a shared home look too, whatever this one's umask
    fcntl.fcntl(handle, fcntl.F_OFD_SETLK, struct.pack(_LOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    return handle


def is_held(path: Path) -> bool:
    """Return whether some process holds the lock; also when that cannot be told, so that nobody is overtaken."""
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
    """Signal a process if it has the lock's file open, and return whether it has.

    A record may name any process: its number may be forged, or belong to another process by now.
    """
    try:
        process = os.pidfd_open(pid)
    except (OSError, OverflowError):
        return False
    try:
        # The process cannot become another one between the look and the signal: the descriptor stands for it.
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
