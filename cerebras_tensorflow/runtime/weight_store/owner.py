"""owner.json: the lock that says which run has a weight store's folder.

The file is locked (flock) while its run lives, and the system releases a killed run's lock. So an owner.json without a
lock is stale, whatever it says.

The folder may have come from somebody else, with a model_dir that was copied or unpacked. So no call here follows a
link, and a file that this user did not make is refused, never written to.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import stat
import time
from pathlib import Path
from typing import Any

from cerebras_tensorflow.errors import StoreError

OWNER = "owner.json"
SAFE_OPEN = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_WHAT_TO_DO = "Look at it and remove it, or choose another folder with weight_store_dir."
_TITLE = "Scratch space of a training run, not a checkpoint."
_ABOUT = (
    f"{_TITLE} While the run lives it holds a lock on this file. If nothing "
    "does, the run was killed, and the folder may be deleted; the next run that uses it removes it."
)


def take_lock(directory: int, folder: Path) -> tuple[int, dict[str, Any]]:
    """Lock owner.json, making it if it is missing.

    Args:
        directory: Descriptor of the folder.
        folder: Its path, for messages.

    Returns:
        The file's descriptor, which holds the lock until it is closed; and what a killed run wrote there, or {}.

    Raises:
        StoreError: If another run holds the lock, or the file is not a weight store's.
        OSError: If the file cannot be made.
    """
    while True:
        lock = _open(directory, folder)
        if lock is None:
            continue  # the run before removed it between two of our calls
        try:
            refuse_foreign(os.fstat(lock), folder / OWNER)
            _lock(lock, folder)
            if is_same_file(lock, directory):
                return lock, _read(lock, folder)
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)  # another file has its name now


def write_owner(lock: int, num_bytes: int, made_folder: bool) -> None:
    """Write whose the folder is.

    Args:
        lock: From `take_lock`.
        num_bytes: Size of the store [B].
        made_folder: Whether this run made the folder, so that it goes with the store.
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
    """Return who an owner is, for messages."""
    if not owner:
        return "it has not said which"
    return f"process {owner.get('process')} on {owner.get('host')}, since {owner.get('started')}"


def is_same_file(file: int, directory: int, name: str = OWNER) -> bool:
    """Whether an open file still has its name in a folder."""
    try:
        return os.path.samestat(os.fstat(file), os.stat(name, dir_fd=directory, follow_symlinks=False))
    except FileNotFoundError:
        return False


def refuse_foreign(status: os.stat_result, path: Path) -> None:
    """Refuse a file that was there before, if this user did not make it for a store.

    Raises:
        StoreError: If it is a link, is not a file, belongs to another user, or has a second name.
    """
    if not stat.S_ISREG(status.st_mode):
        what = "is not a regular file"
    elif status.st_uid != os.geteuid():
        what = f"belongs to user {status.st_uid}, and this run to user {os.geteuid()}"
    elif status.st_nlink > 1:
        what = "is a hard link to another file"
    else:
        return
    raise StoreError(f"the weight store does not use {path}: it {what}. {_WHAT_TO_DO}")


def _open(directory: int, folder: Path) -> int | None:
    """Open owner.json or make it; None if it went away in between."""
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
        raise StoreError(
            f"the weight store does not use {folder / OWNER}: it is a symbolic link. {_WHAT_TO_DO}"
        ) from None


def _lock(lock: int, folder: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = described(_read(lock, folder))
        raise StoreError(
            f"the weight store {folder} is in use by another run ({owner}). Wait for it, stop it, "
            "or give this run a folder of its own with weight_store_dir."
        ) from None


def _read(lock: int, folder: Path) -> dict[str, Any]:
    """Return what owner.json says; {} if it is empty.

    Raises:
        StoreError: If a weight store did not write it.
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
            f"the weight store does not write over {folder / OWNER}: no weight store wrote what it says. {_WHAT_TO_DO}"
        )
    return owner
