"""owner.json: the lock that shows which run uses a folder, of a weight store or of the processes of several CSX.

A run holds a lock (flock) on the file while it lives. The system releases the lock of a killed run. So an owner.json
without a lock is stale, whatever its content is.

The folder may come from another user, in a copied or unpacked model_dir. So no call here follows a link, and no call
writes to a file that this user did not make.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import stat
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cerebras_tensorflow.errors import FolderInUseError, StoreError

OWNER = "owner.json"
SAFE_OPEN = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_TITLE = "Scratch space of a training run, not a checkpoint."
_ABOUT = (
    f"{_TITLE} The run holds a lock on this file while it lives. If nothing "
    "holds the lock, the run was killed and the folder may be deleted. The next run that uses it removes its files."
)


@dataclass(frozen=True)
class FolderUse:
    """What a run uses a folder for, for messages.

    Attributes:
        name: What is in the folder.
        writer: What writes its files.
        setting: The setting that chooses another folder.
    """

    name: str
    writer: str
    setting: str

    @property
    def what_to_do(self) -> str:
        """What to do about a file that no run of this user made."""
        return f"Look at it and remove it, or choose another folder with {self.setting}."


WEIGHT_STORE = FolderUse("the weight store", "weight store", "weight_store_dir")


def take_lock(directory: int, folder: Path, use: FolderUse = WEIGHT_STORE) -> tuple[int, dict[str, Any]]:
    """Lock owner.json, making it if it is missing.

    Args:
        directory: Descriptor of the folder.
        folder: Its path, for messages.
        use: What the folder is for.

    Returns:
        The file's descriptor, which holds the lock until it is closed, and the content that a killed run left, or {}.

    Raises:
        FolderInUseError: If another run holds the lock.
        StoreError: If the file is not a run's.
        OSError: If the file cannot be made.
    """
    while True:
        lock = _open(directory, folder, use)
        if lock is None:
            continue  # the last run removed the file between two of our calls
        try:
            refuse_foreign(os.fstat(lock), folder / OWNER, use)
            _lock(lock, folder, use)
            if is_same_file(lock, directory):
                return lock, _read(lock, folder, use)
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)  # another process has replaced the file


def write_owner(lock: int, num_bytes: int, made_folder: bool) -> None:
    """Write this process into owner.json.

    Args:
        lock: From `take_lock`.
        num_bytes: Size of the store [B].
        made_folder: Whether this run made the folder. It is then removed with the store.
    """
    owner = {
        "about": _ABOUT,
        "process": os.getpid(),
        "host": socket.gethostname(),
        "started": time.strftime("%Y-%m-%d %H:%M:%S"),
        "bytes": num_bytes,
        "made_folder": made_folder,
    }
    os.ftruncate(lock, 0)
    os.pwrite(lock, json.dumps(owner, indent=1).encode() + b"\n", 0)


def described(owner: dict[str, Any]) -> str:
    """Return which run an owner is, for messages."""
    if not owner:
        return "unknown, its owner.json is empty"
    return f"process {owner.get('process')} on {owner.get('host')}, since {owner.get('started')}"


def is_same_file(file: int, directory: int, name: str = OWNER) -> bool:
    """Whether a name in a folder still belongs to an open file."""
    try:
        return os.path.samestat(os.fstat(file), os.stat(name, dir_fd=directory, follow_symlinks=False))
    except FileNotFoundError:
        return False


def refuse_foreign(status: os.stat_result, path: Path, use: FolderUse = WEIGHT_STORE) -> None:
    """Refuse an existing file that this user did not make for a run.

    Raises:
        StoreError: If it is a link, is not a regular file, belongs to another user, or has a second name.
    """
    if not stat.S_ISREG(status.st_mode):
        what = "is not a regular file"
    elif status.st_uid != os.geteuid():
        what = f"belongs to user {status.st_uid}, and this run to user {os.geteuid()}"
    elif status.st_nlink > 1:
        what = "is a hard link to another file"
    else:
        return
    raise StoreError(f"{use.name} does not use {path}: it {what}. {use.what_to_do}")


def _open(directory: int, folder: Path, use: FolderUse) -> int | None:
    """Open owner.json or make it. None if it vanished between the two attempts."""
    try:
        return os.open(OWNER, SAFE_OPEN | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=directory)
    except FileExistsError:
        pass
    try:
        return os.open(OWNER, SAFE_OPEN, dir_fd=directory)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise StoreError(f"{use.name} does not use {folder / OWNER}: it is a symbolic link. {use.what_to_do}") from None


def _lock(lock: int, folder: Path, use: FolderUse) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = described(_read(lock, folder, use))
        raise FolderInUseError(
            f"{use.name} {folder} is in use by another run ({owner}). Wait for it, stop it, "
            f"or give this run a folder of its own with {use.setting}."
        ) from None


def _read(lock: int, folder: Path, use: FolderUse) -> dict[str, Any]:
    """Return the content of owner.json, {} if it is empty.

    Raises:
        StoreError: If no run wrote it.
    """
    content = os.pread(lock, 1 << 16, 0)
    if not content:
        return {}
    try:
        owner = json.loads(content)
    except (ValueError, RecursionError):
        owner = None
    if not isinstance(owner, dict) or not str(owner.get("about")).startswith(_TITLE):
        raise StoreError(
            f"{use.name} does not overwrite {folder / OWNER}: no {use.writer} wrote this file. {use.what_to_do}"
        )
    return owner
