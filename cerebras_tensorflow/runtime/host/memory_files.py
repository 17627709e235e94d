"""Files in memory, without a name, that other processes of this user on this machine can open through /proc.

Nothing is left when all processes that use such a file have ended, however that happens.
"""

from __future__ import annotations

import errno
import fcntl
import os


def create(name: str) -> int:
    """Return the descriptor of a new, empty file, which only this user can open.

    Args:
        name: What the file is for. Others see it in /proc.

    Raises:
        OSError: If this system or this Python has no such files.
    """
    try:
        file = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except AttributeError:  # a Python that was built for an old C library
        raise OSError(errno.ENOSYS, "this Python has no os.memfd_create") from None
    os.fchmod(file, 0o600)
    return file


def fix_size(file: int) -> None:
    """Allow no process to change the size of a file: a reader would get a signal beyond the end.

    Raises:
        OSError: If the system does not allow it.
    """
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)


def open_other(process: int, file: int, name: str, flags: int) -> int:
    """Return an own descriptor of a file that another process has made.

    Args:
        process: The other process.
        file: Its descriptor.
        name: What the file must be for.
        flags: As of os.open.

    Raises:
        OSError: If it cannot be opened, or is another file: in another container, a number names another process.
    """
    path = f"/proc/{process}/fd/{file}"
    link = os.readlink(path)
    if not link.startswith(f"/memfd:{name} "):  # opening a device or a pipe could block or change it
        raise OSError(errno.ESTALE, f"{link}, not a file in memory for {name}", path)
    return os.open(path, flags | os.O_CLOEXEC)
