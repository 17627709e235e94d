"""The folder of a file-based store. One run uses it at a time, and removes what a killed run left there.

    <folder>/owner.json        which run owns it, see owner.py; locked while that run lives
    <folder>/weights.scratch   the weights

These files do not outlive a run; only checkpoints do. The store follows no links to the folder and makes its files
anew. So a model_dir from another user cannot make a run overwrite a file outside it.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cerebras_tensorflow.errors import StoreError
from cerebras_tensorflow.runtime.host.disk_space import FULL, Need, check_space, free_bytes, reserve
from cerebras_tensorflow.runtime.weight_store.owner import (
    OWNER,
    SAFE_OPEN,
    described,
    is_same_file,
    refuse_foreign,
    take_lock,
    write_owner,
)
from cerebras_tensorflow.units import format_bytes

logger = logging.getLogger(__name__)

SCRATCH = "weights.scratch"


class StoreFolder:
    """A locked folder with the store's file in it.

    Args:
        folder: Made if it is missing. No part of its path may be a symbolic link.
        num_bytes: Disk space to reserve for the file [B].
        is_direct: Whether reads and writes bypass the page cache, if the file system supports that.
        beside: What else the run will write, perhaps to the same disk.
        length: Length of the file [B]. None: num_bytes. The part beyond num_bytes takes no space yet.

    Attributes:
        folder: The folder.
        path: The file.
        file: Its descriptor.
        is_direct: Whether reads and writes of `file` bypass the page cache.
        cached_file: A descriptor of the file whose reads and writes use the page cache; perhaps the same one.

    Raises:
        StoreError: If another run uses the folder, it cannot be made, it holds files of another user, or the disk has
            too little space.
    """

    def __init__(
        self,
        folder: Path,
        num_bytes: int,
        is_direct: bool,
        beside: Sequence[Need] = (),
        length: int | None = None,
    ) -> None:
        self.folder = Path(os.path.abspath(folder))
        self.path = self.folder / SCRATCH
        self._num_bytes = num_bytes
        self._has_warned = False
        self._made: list[Path] = []
        try:
            self._made += [place for place in (self.folder, *self.folder.parents) if not place.exists()]
            self._directory = _open_folder(self.folder)
            lock, owner = self._take_lock()
        except BaseException as error:
            _remove_empty(self._made)
            if not isinstance(error, OSError):
                raise
            raise StoreError(
                f"the weight store cannot use {self.folder} ({error}); choose another folder with weight_store_dir"
            ) from error
        if owner.get("made_folder") and self.folder not in self._made:
            self._made.append(self.folder)  # a killed run made it, so this run removes it
        self._files = [OWNER]  # files for this run to remove, from last to first
        # Also releases the folder if the store is never closed: another run in this process may need it.
        self._leave = weakref.finalize(
            self, _leave, lock, self._directory, self.folder, self._files, self._made, os.getpid()
        )
        try:
            _remove_stale(self._directory, self.folder, described(owner))
            check_space([Need("the weight store", self.folder, num_bytes, "weight_store_dir"), *beside])
            write_owner(lock, num_bytes, bool(self._made))
            self.file, self.is_direct = self._make_file(is_direct, num_bytes if length is None else length)
            self._close_file = weakref.finalize(self, os.close, self.file)
            self.cached_file = self._open_cached()
        except OSError as error:
            self._leave()
            raise StoreError(
                f"the weight store cannot reserve {format_bytes(num_bytes)} in {self.folder} ({error}); choose another "
                "folder with weight_store_dir"
            ) from error
        except BaseException:
            self._leave()
            raise
        is_second = self.cached_file != self.file
        self._close_cached = weakref.finalize(self, os.close, self.cached_file) if is_second else None

    def error(self, name: str, error: OSError, doing: str) -> StoreError:
        """Return the StoreError for an error of the file. `doing` completes a sentence, for example "written to"."""
        text = f"{name} could not be {doing} the weight store {self.path}: {error.strerror or error}"
        if error.errno in FULL:
            missing = max(self._num_bytes - os.fstat(self.file).st_blocks * 512, 0)
            text += f". The store needs {format_bytes(missing)} more"
            if error.errno == errno.EFBIG:
                text += " than the file size limit of this process allows (ulimit -f); raise it"
            elif self.folder.exists():
                free = free_bytes(self.folder)
                text += f", {format_bytes(free)} are free; free {format_bytes(max(missing - free, 0))}"
            text += ", or choose another folder with weight_store_dir"
        return StoreError(f"{text}. Checkpoints are not touched: a new run goes on from the last one.")

    def warn_if_deleted(self) -> None:
        """Warn once if the file was deleted. The run goes on: an open file keeps its content until it is closed."""
        if not self._has_warned and os.fstat(self.file).st_nlink == 0:
            self._has_warned = True
            logger.warning(
                "the weight store %s was deleted while this run uses it. The run goes on, since an open file keeps its "
                "content; its %s become free when the run ends. Checkpoints are not affected.",
                self.path,
                format_bytes(self._num_bytes),
            )

    def close(self) -> None:
        """Remove the file and release the folder."""
        self._close_file()
        if self._close_cached is not None:
            self._close_cached()
        self._leave()

    def _take_lock(self) -> tuple[int, dict[str, Any]]:
        try:
            return take_lock(self._directory, self.folder)
        except BaseException:
            os.close(self._directory)
            raise

    def _make_file(self, is_direct: bool, length: int) -> tuple[int, bool]:
        """Make the file. Return its descriptor, and whether it bypasses the page cache."""
        file = -1
        if is_direct and hasattr(os, "O_DIRECT"):
            try:
                file = self._create(os.O_DIRECT)
            except OSError as error:
                if error.errno != errno.EINVAL:  # a file system without O_DIRECT; it may have made the file
                    raise
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(SCRATCH, dir_fd=self._directory)
        is_direct = file >= 0
        if not is_direct:
            file = self._create(0)
        try:
            reserve(file, 0, self._num_bytes)
            if length > self._num_bytes:
                os.ftruncate(file, length)
        except BaseException:
            os.close(file)
            raise
        return file, is_direct

    def _open_cached(self) -> int:
        """Return a descriptor of the file that uses the page cache. If it fails, the file is closed."""
        if not self.is_direct:
            return self.file
        try:
            return os.open(f"/proc/self/fd/{self.file}", os.O_RDWR | os.O_CLOEXEC)
        except BaseException:
            self._close_file()
            raise

    def _create(self, flags: int) -> int:
        """Make the file. O_EXCL fails if the name exists, so no planted link is followed."""
        file = os.open(SCRATCH, SAFE_OPEN | os.O_CREAT | os.O_EXCL | flags, 0o600, dir_fd=self._directory)
        self._files.append(SCRATCH)
        return file


def remove_left_stores(folder: Path) -> None:
    """Remove what killed runs left in a folder of stores and in its subfolders. What a live run uses stays."""
    for owner in [*folder.glob(OWNER), *folder.glob(f"*/{OWNER}")]:
        with contextlib.suppress(OSError, StoreError):  # a live run uses it, or it is not ours
            _remove_left_store(owner.parent)


def _remove_left_store(folder: Path) -> None:
    directory = _open_folder(folder)
    try:
        lock, owner = take_lock(directory, folder)
    except BaseException:
        os.close(directory)
        raise
    removed: list[str] = []
    try:
        _remove_stale(directory, folder, described(owner))
        removed.append(OWNER)
    finally:
        _leave(lock, directory, folder, removed, [folder] if owner.get("made_folder") else [], os.getpid())


def _remove_stale(directory: int, folder: Path, owner: str) -> None:
    """Remove the scratch file of a killed run from an open folder that is locked."""
    try:
        status = os.stat(SCRATCH, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return
    refuse_foreign(status, folder / SCRATCH)
    os.unlink(SCRATCH, dir_fd=directory)
    logger.warning(
        "removed the stale weight store %s (%s), left by a run that was killed (%s)",
        folder / SCRATCH,
        format_bytes(status.st_size),
        owner,
    )


def _open_folder(folder: Path) -> int:
    """Make a folder if it is missing. Return its descriptor.

    Raises:
        StoreError: If a part of its path is a symbolic link.
        OSError: If it cannot be made or is not a folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    real = os.path.realpath(folder)
    if real != str(folder):
        raise StoreError(
            f"the weight store does not use {folder}: a symbolic link in it leads to {real}. Remove the link, or set "
            "weight_store_dir to the real folder."
        )
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _leave(lock: int, directory: int, folder: Path, files: Sequence[str], made: Sequence[Path], process: int) -> None:
    """Remove the store's files, release its lock, and remove the folders that this run made."""
    if os.getpid() != process:
        return  # a child process that inherited the store; it belongs to the parent
    try:
        if is_same_file(lock, directory):
            for name in reversed(files):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=directory)
    except OSError as error:
        # The results are in checkpoints, so leftover scratch files must not fail the run.
        logger.warning("the weight store %s could not be removed (%s); you can delete it", folder, error)
    finally:
        os.close(lock)
        os.close(directory)
    _remove_empty(made)


def _remove_empty(folders: Sequence[Path]) -> None:
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            logger.debug("%s was not removed: it is gone already, or it is not empty", folder)
