"""The folder of a file store: one run at a time; what a killed run left is recognised and removed.

    <folder>/owner.json        whose it is, see owner.py; locked while that run lives
    <folder>/weights.scratch   the weights

Nothing here outlives a run: checkpoints are what a run leaves. The folder is reached without following links, and its
files are made anew, so a model_dir that came from somebody else cannot lead a run to write over a file outside it.
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
        folder: Made if it is missing; no part of its path may be a symbolic link.
        num_bytes: Bytes of the file that are reserved on the disk.
        is_direct: Whether reads and writes go past the page cache, if the file system lets them.
        beside: What else the run is going to write, perhaps to the same disk.
        length: Length of the file [B]; None: num_bytes. What is beyond num_bytes takes no space yet.

    Attributes:
        folder: The folder.
        path: The file.
        file: Its descriptor.
        is_direct: Whether reads and writes go past the page cache.

    Raises:
        StoreError: If another run holds it, it cannot be made, it has files that are not this user's, or the disk has
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
        self._is_deletion_told = False
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
            self._made.append(self.folder)  # the killed run made it, so it goes with this one
        self._files = [OWNER]  # those that are this run's to remove, the last one first
        # A store that is not closed leaves the folder too: another run in this process may need it.
        self._leave = weakref.finalize(
            self, _leave, lock, self._directory, self.folder, self._files, self._made, os.getpid()
        )
        try:
            self._remove_stale(described(owner))
            check_space([Need("the weight store", self.folder, num_bytes, "weight_store_dir"), *beside])
            write_owner(lock, num_bytes, bool(self._made))
            self.file, self.is_direct = self._make_file(is_direct, num_bytes if length is None else length)
        except OSError as error:
            self._leave()
            raise StoreError(
                f"the weight store cannot reserve {format_bytes(num_bytes)} in {self.folder} ({error}); choose another "
                "folder with weight_store_dir"
            ) from error
        except BaseException:
            self._leave()
            raise
        self._close_file = weakref.finalize(self, os.close, self.file)

    def error(self, name: str, error: OSError, doing: str) -> StoreError:
        """Return what to tell a user about an error of the file: `doing` as in "written to"."""
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
        """Warn once if the file was deleted. The run can go on: an open file keeps its content until it is closed."""
        if not self._is_deletion_told and os.fstat(self.file).st_nlink == 0:
            self._is_deletion_told = True
            logger.warning(
                "the weight store %s was deleted while this run uses it. The run goes on, since an open file keeps its "
                "content; its %s become free when the run ends. Checkpoints are not affected.",
                self.path,
                format_bytes(self._num_bytes),
            )

    def close(self) -> None:
        """Remove the file and give up the folder."""
        self._close_file()
        self._leave()

    def _take_lock(self) -> tuple[int, dict[str, Any]]:
        try:
            return take_lock(self._directory, self.folder)
        except BaseException:
            os.close(self._directory)
            raise

    def _remove_stale(self, owner: str) -> None:
        try:
            status = os.stat(SCRATCH, dir_fd=self._directory, follow_symlinks=False)
        except FileNotFoundError:
            return
        refuse_foreign(status, self.path)
        os.unlink(SCRATCH, dir_fd=self._directory)
        logger.warning(
            "removed the stale weight store %s (%s), left by a run that was killed (%s)",
            self.path,
            format_bytes(status.st_size),
            owner,
        )

    def _make_file(self, is_direct: bool, length: int) -> tuple[int, bool]:
        """Make the file; return its descriptor, and whether that goes past the page cache."""
        file = -1
        if is_direct and hasattr(os, "O_DIRECT"):
            try:
                file = self._create(os.O_DIRECT)
            except OSError as error:
                if error.errno != errno.EINVAL:  # a file system without O_DIRECT, which may have made the file
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

    def _create(self, flags: int) -> int:
        """Make the file, which must not be there: a link that somebody puts there is not followed."""
        file = os.open(SCRATCH, SAFE_OPEN | os.O_CREAT | os.O_EXCL | flags, 0o600, dir_fd=self._directory)
        self._files.append(SCRATCH)
        return file


def _open_folder(folder: Path) -> int:
    """Return the descriptor of a folder, which is made if it is missing.

    Raises:
        StoreError: If a part of its path is a symbolic link.
        OSError: If it cannot be made or is not a folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    real = os.path.realpath(folder)
    if real != str(folder):
        raise StoreError(
            f"the weight store does not use {folder}: a symbolic link in it leads to {real}. Remove the link, or set "
            "weight_store_dir to the folder that is meant."
        )
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _leave(lock: int, directory: int, folder: Path, files: Sequence[str], made: Sequence[Path], process: int) -> None:
    """Remove the store's files, give up its lock, and remove the folders that this run made."""
    if os.getpid() != process:
        return  # a child that inherited the store; it is its parent's
    try:
        if is_same_file(lock, directory):
            for name in reversed(files):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=directory)
    except OSError as error:
        # What the run has learned is in its checkpoints, so scratch files that stay must not end it.
        logger.warning("the weight store %s could not be removed (%s); it may be deleted", folder, error)
    finally:
        os.close(lock)
        os.close(directory)
    _remove_empty(made)


def _remove_empty(folders: Sequence[Path]) -> None:
    for folder in folders:
        try:
            folder.rmdir()
        except OSError:
            logger.debug("%s stays: it is gone already, or something else is in it", folder)
