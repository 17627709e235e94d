"""The folder of a file store: one run at a time, what a killed run left is recognised and removed.

    <folder>/owner.json        whose it is; locked (flock) for as long as that run lives
    <folder>/weights.scratch   the weights

Nothing here outlives a run for its own sake: checkpoints are what a run leaves. The system gives a killed run's lock
back, so a folder whose owner.json nobody locks is stale, whatever it says; the next store there removes it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import socket
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cerebras_tensorflow.errors import StoreError
from cerebras_tensorflow.runtime.host.disk_space import FULL, Need, check_space, free_bytes, reserve
from cerebras_tensorflow.units import format_bytes

logger = logging.getLogger(__name__)

OWNER, SCRATCH = "owner.json", "weights.scratch"
_ABOUT = (
    "Scratch space of a training run, not a checkpoint. While the run lives it holds a lock on this file. If nothing "
    "does, the run was killed, and the folder may be deleted; the next run that uses it removes it."
)


class StoreFolder:
    """A locked folder with the store's file in it.

    Args:
        folder: Made if it is missing.
        num_bytes: Size of the file; reserved on the disk.
        is_direct: Whether reads and writes go past the page cache, if the file system lets them.
        beside: What else the run is going to write, perhaps to the same disk.

    Attributes:
        folder: The folder.
        path: The file.
        file: Its descriptor.
        is_direct: Whether they do.

    Raises:
        StoreError: If another run holds it, it cannot be made, or the disk has too little space.
    """

    def __init__(self, folder: Path, num_bytes: int, is_direct: bool, beside: Sequence[Need] = ()) -> None:
        self.folder = folder
        self._num_bytes = num_bytes
        self._is_deletion_told = False
        self.path = folder / SCRATCH
        try:
            self._made = [place for place in (folder, *folder.parents) if not place.exists()]
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = self._take_lock()
        except OSError as error:
            raise StoreError(
                f"the weight store cannot use {folder} ({error}); choose another folder with weight_store_dir"
            ) from error
        # Also when nobody calls `close`: another run in this process may want the folder.
        self._leave = weakref.finalize(self, _leave, self._lock, folder, self._made, os.getpid())
        try:
            self._remove_stale()
            check_space([Need("the weight store", folder, num_bytes, "weight_store_dir"), *beside])
            self._write_owner()
            self.file, self.is_direct = self._make_file(is_direct)
        except OSError as error:
            self._leave()
            raise StoreError(
                f"the weight store cannot reserve {format_bytes(num_bytes)} in {folder} ({error}); choose another "
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
        """Say once if somebody has deleted the file. The run can go on: what is open stays until it is closed."""
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

    def _take_lock(self) -> int:
        path = self.folder / OWNER
        while True:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_same_file(lock, path):
                    return lock
                os.close(lock)  # the run before removed it between our open and our lock
            except BlockingIOError:
                owner = _read_owner(lock)
                os.close(lock)
                raise StoreError(
                    f"the weight store {self.folder} is in use by another run ({_who(owner)}). Wait for it, stop it, "
                    "or give this run a folder of its own with weight_store_dir."
                ) from None
            except OSError:
                os.close(lock)
                raise

    def _remove_stale(self) -> None:
        if not self.path.exists():
            return
        owner = _read_owner(self._lock)
        size = self.path.stat().st_size
        self.path.unlink()
        if owner.get("made_folder"):
            self._made.append(self.folder)
        logger.warning(
            "removed the stale weight store %s (%s), left by a run that was killed (%s)",
            self.path,
            format_bytes(size),
            _who(owner),
        )

    def _write_owner(self) -> None:
        owner = {
            "about": _ABOUT,
            "process": os.getpid(),
            "host": socket.gethostname(),
            "started": time.strftime("%Y-%m-%d %H:%M:%S"),
            "bytes": self._num_bytes,
            "made_folder": bool(self._made),
        }
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, json.dumps(owner, indent=1).encode() + b"\n", 0)

    def _make_file(self, is_direct: bool) -> tuple[int, bool]:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        file = -1
        if is_direct and hasattr(os, "O_DIRECT"):
            try:
                file = os.open(self.path, flags | os.O_DIRECT, 0o600)
            except OSError as error:
                if error.errno != errno.EINVAL:  # a file system without O_DIRECT
                    raise
        is_direct = file >= 0
        if not is_direct:
            file = os.open(self.path, flags, 0o600)
        try:
            reserve(file, 0, self._num_bytes)
        except OSError:
            os.close(file)
            raise
        return file, is_direct


def _leave(lock: int, folder: Path, made: Sequence[Path], process: int) -> None:
    """Remove what is in a folder, give up its lock, and remove the folders that this run made."""
    if os.getpid() != process:
        return  # a child that inherited the store; it is its parent's
    if _is_same_file(lock, folder / OWNER):
        (folder / SCRATCH).unlink(missing_ok=True)
        (folder / OWNER).unlink(missing_ok=True)
    os.close(lock)
    for place in made:
        try:
            place.rmdir()
        except OSError:
            logger.debug("%s stays: it is gone already, or something else is in it", place)


def _is_same_file(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False


def _read_owner(lock: int) -> dict[str, Any]:
    try:
        owner = json.loads(os.pread(lock, 1 << 16, 0))
    except (OSError, ValueError):
        return {}
    return owner if isinstance(owner, dict) else {}


def _who(owner: dict[str, Any]) -> str:
    if not owner:
        return "it has not said which"
    return f"process {owner.get('process')} on {owner.get('host')}, since {owner.get('started')}"
