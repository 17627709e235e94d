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
import shutil
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TypeAlias

AnyPath: TypeAlias = str | os.PathLike[str]

# `remove_left` recognizes drafts of killed processes by this start and end of their names.
DRAFT_PREFIX, DRAFT_SUFFIX = ".", ".partial"
# A file name has at most 255 bytes; a character has at most 4.
_NAME_CHARACTERS = 48

# Errors of file systems that cannot flush a file or a folder, such as some FUSE and SMB ones.
_CANNOT_FLUSH = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})

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
def closed_to_others() -> Iterator[None]:
    """In this block no new file or folder of this process is writable for every user, even with umask 0.

    This holds for files of TensorFlow too. The users of the file's group may write, if the umask allows it. The umask
    belongs to the process: while threads are in such blocks, the last one that leaves restores it.
    """
    _closed.enter()
    try:
        yield
    finally:
        _closed.leave()


class _ClosedUmask:
    """The process's umask while at least one thread is in a block of `closed_to_others`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._num_inside = 0
        self._before = 0

    def enter(self) -> None:
        with self._lock:
            if self._num_inside == 0:
                self._before = os.umask(0o022)
                os.umask(self._before | 0o002)
            self._num_inside += 1

    def leave(self) -> None:
        with self._lock:
            self._num_inside -= 1
            if self._num_inside == 0:
                os.umask(self._before)


_closed = _ClosedUmask()


@contextlib.contextmanager
def atomic_file(path: AnyPath, permissions: int = 0o666, is_durable: bool = True) -> Iterator[BinaryIO]:
    """Open a draft for writing. At the end of the block the draft replaces the file; after an error it is removed.

    Arguments and errors are those of `write_bytes`.
    """
    # The file is closed, and so complete, before the draft replaces the other.
    with _draft(path, permissions, is_durable) as (_, fd), open(fd, "wb", closefd=False) as file:
        yield file


@contextlib.contextmanager
def atomic_path(path: AnyPath, permissions: int = 0o666, is_durable: bool = True) -> Iterator[Path]:
    """Yield the path of an empty draft, for libraries that open files by name; otherwise as `atomic_file`.

    The draft is locked. Open it with h5py as `h5py.File(draft, "w", locking=False)`: HDF5's own lock would fail.
    """
    with _draft(path, permissions, is_durable) as (draft, _):
        yield Path(draft)


@contextlib.contextmanager
def _draft(path: AnyPath, permissions: int, is_durable: bool) -> Iterator[tuple[str, int]]:
    """Yield the path and the descriptor of a draft. It replaces the file at the end; after an error it is removed."""
    draft, fd = _create_draft(path, permissions)
    try:
        yield draft, fd
        put_in_place(fd, draft, path, is_durable)
    except BaseException:
        remove_if_possible(draft)
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
    with open_regular(path) as file:
        num_bytes = os.fstat(file.fileno()).st_size
        if num_bytes > max_bytes:
            raise OSError(errno.EFBIG, f"{num_bytes} bytes, at most {max_bytes} are read", os.fspath(path))
        return file.read(max_bytes)


def open_regular(path: AnyPath, flags: int = 0) -> BinaryIO:
    """Open a regular file for reading. Like `read_regular`, it is for files of unknown origin: a pipe cannot block it.

    Args:
        path: The file.
        flags: Additional flags for os.open, such as O_NOFOLLOW.

    Raises:
        OSError: If it cannot be opened, or is not a regular file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return open(fd, "rb")
    os.close(fd)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))


def put_in_place(fd: int, draft: AnyPath, target: AnyPath, is_durable: bool = True) -> None:
    """Rename a finished draft to its target in the same folder.

    Args:
        fd: Descriptor of the draft.
        draft: Path of the draft.
        target: The new name. It replaces a regular file or a symbolic link, but not the file that the link names.
        is_durable: As in `write_bytes`.

    Raises:
        OSError: If the draft cannot be renamed, another process has replaced it, or the target is not a regular file.
    """
    check_replaceable(target)
    if is_durable:
        flush(fd)
    if not os.path.samestat(os.fstat(fd), os.lstat(draft)):
        raise FileExistsError(errno.EEXIST, "another process has replaced this draft", os.fspath(draft))
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


def create_once(path: AnyPath, content: bytes, permissions: int = 0o600) -> None:
    """Create a durable file with this content, unless it exists. If two processes create it, the first one wins.

    Raises:
        OSError: If it cannot be created. Its folder must exist.
    """
    draft, fd = _create_draft(path, permissions)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(content)
        flush(fd)
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
        sync_folder(os.path.dirname(os.path.abspath(path)))
    finally:
        remove_if_possible(draft)
        _drafts.discard((os.getpid(), draft))
        os.close(fd)


def lock(fd: int) -> bool:
    """Lock an open file or folder; return False if its file system has no locks.

    Raises:
        BlockingIOError: If another process holds the lock.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


@contextlib.contextmanager
def draft_folder(path: AnyPath) -> Iterator[Path]:
    """Yield a new folder beside a path. The caller fills it and renames it to the path; else it is removed at the end.

    The folder is locked while its writer is alive. What killed writers of the same path left is removed, if the file
    system has locks that tell.

    Raises:
        OSError: If the folder cannot be created.
    """
    parent, name = os.path.split(os.path.abspath(path))
    prefix = f"{DRAFT_PREFIX}{name[:_NAME_CHARACTERS]}."
    _remove_left_folders(parent, prefix)
    draft, fd = _create_draft_folder(os.path.join(parent, prefix))
    try:
        yield Path(draft)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        os.close(fd)


def _create_draft_folder(prefix: str) -> tuple[str, int]:
    """Return the path of a new folder and its descriptor, locked."""
    while True:
        draft = f"{prefix}{secrets.token_hex(4)}{DRAFT_SUFFIX}"
        # Between mkdir and lock, a clean-up may remove the folder: without a lock it looks abandoned.
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            os.mkdir(draft)
            try:
                fd = _open_folder(draft)
            except OSError:
                os.rmdir(draft)
                raise
            if _is_ours(fd, draft):
                return draft, fd
            os.close(fd)
        if not os.path.isdir(os.path.dirname(draft)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.path.dirname(draft))


def _remove_left_folders(parent: str, prefix: str) -> None:
    with contextlib.suppress(OSError):  # a folder that can be written to but not listed
        for item in os.scandir(parent):
            is_draft = item.name.startswith(prefix) and item.name.endswith(DRAFT_SUFFIX)
            if is_draft and item.is_dir(follow_symlinks=False):
                _remove_dead_folder(item.path)


def _remove_dead_folder(path: str) -> None:
    """Remove a draft folder, unless its writer is alive or its file system has no locks that would tell."""
    with contextlib.suppress(OSError):
        fd = _open_folder(path)
        try:
            if lock(fd):
                shutil.rmtree(path)
        finally:
            os.close(fd)


def _open_folder(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def flush(fd: int, has_metadata: bool = True) -> None:
    """Wait until the content of an open file or folder is on the disk, if its file system can do that.

    Args:
        fd: The file or folder.
        has_metadata: Whether to flush its modification time as well.

    Raises:
        OSError: If the disk fails or is full.
    """
    try:
        (os.fsync if has_metadata else os.fdatasync)(fd)
    except OSError as error:
        if error.errno not in _CANNOT_FLUSH:
            raise


def sync_folder(folder: AnyPath) -> None:
    """Make renames and removals in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        flush(fd)
    finally:
        os.close(fd)


def remove_left(folder: AnyPath, prefix: str = DRAFT_PREFIX) -> list[str]:
    """Remove the drafts that killed processes left in a folder; return their paths.

    Args:
        folder: The folder.
        prefix: Remove only drafts whose names start with this. By default, all drafts.

    Raises:
        OSError: If the folder cannot be read.
    """
    removed = []
    for item in os.scandir(folder):
        is_draft = item.name.startswith(prefix) and item.name.endswith(DRAFT_SUFFIX)
        if not (is_draft and item.is_file(follow_symlinks=False)):
            continue
        with contextlib.suppress(OSError):  # its writer is alive; or the file system has no locks, so we cannot tell
            fd = os.open(item.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(item.path)
                removed.append(item.path)
            finally:
                os.close(fd)
    return removed


def _create_draft(path: AnyPath, permissions: int) -> tuple[str, int]:
    """Return the path and descriptor of a new draft. The draft is locked while its writer is alive."""
    folder, name = os.path.split(os.path.abspath(path))
    prefix = f"{DRAFT_PREFIX}{name[:_NAME_CHARACTERS]}."
    with contextlib.suppress(OSError):  # we may write to the folder, but not list it
        remove_left(folder, prefix)
    while True:
        draft = os.path.join(folder, f"{prefix}{secrets.token_hex(4)}{DRAFT_SUFFIX}")
        with contextlib.suppress(FileExistsError):
            fd = open_new(draft, permissions)
            if _is_ours(fd, draft):
                _drafts.add((os.getpid(), draft))
                return draft, fd
            os.close(fd)


def _is_ours(fd: int, draft: str) -> bool:
    """Lock a new draft; return False if a clean-up has locked or removed it first, as a dead process's file."""
    try:
        lock(fd)
        return os.path.samestat(os.fstat(fd), os.stat(draft))
    except (BlockingIOError, FileNotFoundError):
        return False


@atexit.register
def _remove_drafts() -> None:
    """Remove the drafts of background threads that the end of the process interrupts."""
    for process, draft in tuple(_drafts):
        if process == os.getpid():
            remove_if_possible(draft)


def remove_if_possible(path: AnyPath) -> None:
    """Remove a file in a clean-up. It stays if the file system refuses: that must not hide an error before it."""
    with contextlib.suppress(OSError):
        os.unlink(path)
