"""Writes files atomically: under its final name a file is complete or does not exist.

The content goes to a draft, a new file in the target's folder. The draft is flushed to the disk and then renamed. So
readers see the old or the new content, even after a power failure. Nothing here needs TensorFlow.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TypeAlias

AnyPath: TypeAlias = str | os.PathLike[str]

# `saver.files.atomic.remove_stale` removes drafts of killed processes from a model_dir by these.
DRAFT_PREFIX, DRAFT_SUFFIX = ".", ".partial"
# A file name has at most 255 bytes; a character has at most 4.
_NAME_CHARACTERS = 48

# Drafts of this process, and its id: a forked child must not remove the drafts of its parent.
_drafts: set[tuple[int, str]] = set()


def write_bytes(path: AnyPath, content: bytes, permissions: int = 0o666, is_durable: bool = True) -> None:
    """Replace a file by one with this content.

    Args:
        path: The file. Its folder must exist.
        content: All bytes of the new file.
        permissions: Permissions of the new file, before the umask; 0o600 for secrets.
        is_durable: Whether to wait until the content is on the disk. False protects against a killed process, but not
            against a power failure.

    Raises:
        OSError: If the file cannot be written. The old one, if any, stays.
    """
    with atomic_file(path, permissions, is_durable) as file:
        file.write(content)


def write_text(path: AnyPath, text: str, permissions: int = 0o666, is_durable: bool = True) -> None:
    """Replace a file by one with this text in UTF-8; otherwise as `write_bytes`."""
    write_bytes(path, text.encode(), permissions, is_durable)


@contextlib.contextmanager
def atomic_file(path: AnyPath, permissions: int = 0o666, is_durable: bool = True) -> Iterator[BinaryIO]:
    """Open a draft for writing. At the end of the block the draft replaces the file; after an error it is removed.

    Arguments and errors are those of `write_bytes`.
    """
    draft, fd = _create_draft(path, permissions)
    try:
        with open(fd, "wb", closefd=False) as file:
            yield file
        put_in_place(fd, draft, path, is_durable)
    except BaseException:
        _remove(draft)
        raise
    finally:
        _drafts.discard((os.getpid(), draft))
        os.close(fd)


@contextlib.contextmanager
def atomic_path(path: AnyPath, permissions: int = 0o666, is_durable: bool = True) -> Iterator[Path]:
    """Yield the path of an empty draft, for libraries that open files by name; otherwise as `atomic_file`."""
    draft, fd = _create_draft(path, permissions)
    try:
        # HDF5 locks the file itself, so unlock it here.
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)
        yield Path(draft)
        put_in_place(fd, draft, path, is_durable)
    except BaseException:
        _remove(draft)
        raise
    finally:
        _drafts.discard((os.getpid(), draft))
        os.close(fd)


def open_new(path: AnyPath, permissions: int = 0o666) -> int:
    """Create a new file, and return its descriptor, open for reading and writing.

    Raises:
        FileExistsError: If the name exists, even as a dangling symbolic link.
    """
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, permissions)


def read_regular(path: AnyPath, max_bytes: int) -> bytes:
    """Return the content of a small regular file.

    Use this for files of unknown origin: a pipe would block forever, and a sparse file can have any size.

    Args:
        path: The file.
        max_bytes: Largest size that is read [B].

    Raises:
        OSError: If it cannot be opened, is not a regular file, or is larger.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
        if status.st_size > max_bytes:
            raise OSError(errno.EFBIG, f"{status.st_size} bytes, at most {max_bytes} are read", os.fspath(path))
        return file.read(max_bytes)


def put_in_place(fd: int, draft: AnyPath, target: AnyPath, is_durable: bool = True) -> None:
    """Rename a finished draft to its target in the same folder.

    Args:
        fd: Descriptor of the draft.
        draft: Path of the draft.
        target: The new name. It replaces a regular file or a symbolic link, but not the file that the link names.
        is_durable: As in `write_bytes`.

    Raises:
        OSError: If the draft cannot be renamed, or the target is not a regular file.
    """
    check_replaceable(target)
    if is_durable:
        os.fsync(fd)
    os.rename(draft, target)
    if is_durable:
        sync_folder(os.path.dirname(os.path.abspath(target)))


def check_replaceable(target: AnyPath) -> None:
    """Check that a target is a regular file or does not exist: a rename would also replace /dev/null.

    Raises:
        IsADirectoryError: If a folder has that name.
        FileExistsError: If a device, pipe or socket has it.
    """
    try:
        mode = os.stat(target).st_mode
    except OSError:
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "a folder has this name; choose another one", os.fspath(target))
    if not stat.S_ISREG(mode):
        problem = "a device, pipe or socket has this name; choose another one"
        raise FileExistsError(errno.EEXIST, problem, os.fspath(target))


def sync_folder(folder: AnyPath) -> None:
    """Make renames and removals in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _create_draft(path: AnyPath, permissions: int) -> tuple[str, int]:
    """Return the path and descriptor of a new draft. The draft is locked while its writer is alive."""
    folder, name = os.path.split(os.path.abspath(path))
    while True:
        draft = os.path.join(folder, f"{DRAFT_PREFIX}{name[:_NAME_CHARACTERS]}.{secrets.token_hex(4)}{DRAFT_SUFFIX}")
        with contextlib.suppress(FileExistsError):
            fd = open_new(draft, permissions)
            if _is_ours(fd, draft):
                _drafts.add((os.getpid(), draft))
                return draft, fd
            os.close(fd)


def _is_ours(fd: int, draft: str) -> bool:
    """Lock a new draft; return False if a clean-up has locked or removed it first, as a dead process's file."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks, where a clean-up cannot remove the draft either
        return True
    try:
        return os.path.samestat(os.fstat(fd), os.stat(draft))
    except FileNotFoundError:
        return False


@atexit.register
def _remove_drafts() -> None:
    """Remove the drafts of background threads that the end of the process interrupts."""
    for process, draft in tuple(_drafts):
        if process == os.getpid():
            _remove(draft)


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
