"""Files that appear under their final name only when they are complete and durable.

A file is written as `.NAME.partial` beside its target, under an flock; then it is made durable and renamed. The kernel
releases the lock when the process dies, so a partial file without a lock belongs to a dead process. If two processes
write the same target, the second one cannot take the lock. Locks work across hosts if the file system supports them, as
NFS does. On a file system without locks, a second writer is refused as well, and a user has to remove what a dead
process left.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import stat
from collections.abc import Iterator
from types import TracebackType

from cerebras_tensorflow import files
from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.saver.files.writeback import WRITE_BYTES

logger = logging.getLogger(__name__)


class PartialFile:
    """One file that is written under a partial name, then renamed to its target.

    Args:
        target: Final path. Missing parent folders are created, and removed again if nothing is committed into them.

    Raises:
        CheckpointError: If another process is writing the same target, the folder is not writable, or the target is a
            folder or a device.
    """

    def __init__(self, target: str) -> None:
        folder, name = os.path.split(os.path.abspath(target))
        self.target = os.path.join(folder, name)
        self.path = partial_path(self.target)
        with reporting(self.target):
            files.check_replaceable(self.target)
        self._made_folders = _missing_folders(folder)
        self.fd = -1
        self.is_placed = False
        try:
            with reporting(self.target):
                os.makedirs(folder, exist_ok=True)
                self.fd = _create_locked(self.path, self.target)
        except BaseException:
            self._remove_made_folders()
            raise

    def commit(self, target: str | None = None, is_durable: bool = True) -> None:
        """Rename the file to its target, or to another name in the same folder.

        Args:
            target: The other name.
            is_durable: Flush content and name to the disk. False leaves that to the kernel: safe if the process is
                killed, but not in a power failure.
        """
        target = self.target if target is None else target
        with reporting(target):
            try:
                files.put_in_place(self.fd, self.path, target, is_durable)
            finally:  # it may be renamed, but not flushed
                self.is_placed = _is_at(self.fd, target)
        self._close()

    def discard(self) -> None:
        """Remove the file. Does nothing after `commit`."""
        if self.fd >= 0:
            if not self.is_placed:
                files.remove_if_possible(self.path)
                self._remove_made_folders()
            self._close()

    def _remove_made_folders(self) -> None:
        with contextlib.suppress(OSError):  # rmdir raises at the first folder that is not empty
            for folder in self._made_folders:
                os.rmdir(folder)

    def _close(self) -> None:
        os.close(self.fd)
        self.fd = -1


class FolderLock:
    """A lock on a folder, so that only one process saves checkpoints there. A context manager.

    Raises:
        CheckpointError: If another process holds the lock; names the process if /proc/locks lists it.
    """

    def __init__(self, folder: str) -> None:
        self.folder = os.path.abspath(folder)
        self._fd = -1
        with reporting(self.folder):
            os.makedirs(self.folder, exist_ok=True)
            self._fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = _holder(self._fd)
                self.release()
                raise CheckpointError(
                    f"{self.folder}: {holder} is saving checkpoints there. Wait for its end, or choose another folder."
                ) from None
            except OSError as exc:
                # Some network file systems cannot lock folders; locks of single files still work there.
                logger.warning("%s: cannot be locked against a second run (%s)", self.folder, exc.strerror)

    def release(self) -> None:
        """Release the lock."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()


def _is_at(fd: int, path: str) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    return False


def partial_path(target: str) -> str:
    """Return the path of a target while it is being written."""
    folder, name = os.path.split(target)
    return os.path.join(folder, f"{files.DRAFT_PREFIX}{name}{files.DRAFT_SUFFIX}")


def write_file(path: str, content: bytes) -> None:
    """Replace a small file atomically: readers see the old or the new content, even after a crash.

    Raises:
        CheckpointError: If it cannot be written.
    """
    with reporting(path):
        files.write_bytes(path, content)


def write_all(fd: int, content: bytes | memoryview) -> None:
    """Write all of the content; one os.write may write only a part."""
    view = memoryview(content).cast("B")
    while view.nbytes:
        view = view[os.write(fd, view[:WRITE_BYTES]) :]


def remove_stale(folder: str) -> list[str]:
    """Remove the partial files that dead processes left in a folder; return their paths."""
    removed = files.remove_left(folder)
    if removed:
        logger.info("%s: removed %d partial files of processes that died while writing", folder, len(removed))
    return removed


@contextlib.contextmanager
def reporting(path: str) -> Iterator[None]:
    """Turn an OSError from writing into a CheckpointError that says what to do."""
    try:
        yield
    except OSError as exc:
        raise CheckpointError(f"{path}: cannot be written: {exc.strerror or exc}. {_advice(exc.errno)}") from exc


def _advice(code: int | None) -> str:
    match code:
        case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
            return "Nothing of it was kept. Free some space or choose another folder."
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return "Choose a folder that you may write to."
        case errno.ENOENT:
            return "The file system does not allow files there; choose another folder."
        case errno.ENOTDIR | errno.EEXIST:
            return "A file is in the place of a folder; choose another path."
    return "The checkpoint was not written."


def _missing_folders(folder: str) -> list[str]:
    """Return the missing folders of a path, deepest first."""
    missing = []
    while not os.path.lexists(folder):
        missing.append(folder)
        folder = os.path.dirname(folder)
    return missing


def _create_locked(path: str, target: str) -> int:
    """Create a file, lock it and return its descriptor; replace a file that a dead process left."""
    while True:
        try:
            fd = files.open_new(path)
        except FileExistsError:
            _remove_dead(path, target)
            continue
        # Between open and lock, another process may remove the file: without a lock it looks abandoned.
        with contextlib.suppress(FileNotFoundError, BlockingIOError):
            files.lock(fd)
            if os.path.samestat(os.fstat(fd), os.lstat(path)):
                return fd
        os.close(fd)


def _remove_dead(path: str, target: str) -> None:
    """Remove the partial file of a dead process.

    Raises:
        CheckpointError: If its process is alive or may be, or the file is not a plain file of this user: another user
            may have put it there to read or redirect what we write.
    """
    strange = CheckpointError(
        f"{target}: {path} is in the way: it belongs to another user, or is not a regular file. Remove it, or choose "
        "another folder."
    )
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return
    except OSError as exc:
        raise strange from exc
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_nlink > 1:
            raise strange
        if not files.lock(fd):
            raise CheckpointError(
                f"{target}: {path} is in the way, and this file system has no locks that tell whether its process "
                "still writes. If it does not, remove the file."
            )
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(status, os.lstat(path)):
                os.unlink(path)
    except BlockingIOError:
        raise CheckpointError(
            f"{target}: {_holder(fd)} is writing this file now. Wait for it to end, or choose another name."
        ) from None
    finally:
        os.close(fd)


def _holder(fd: int) -> str:
    """Return "process N" for the process that locks an open file, from /proc/locks; "another process" if unknown."""
    status = os.fstat(fd)
    wanted = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with contextlib.suppress(OSError), open("/proc/locks", encoding="ascii") as locks:
        for line in locks:
            parts = line.split()
            if len(parts) > 5 and parts[1] == "FLOCK" and parts[5] == wanted:
                return f"process {parts[4]}"
    return "another process"
