"""A server of a launch announces its address and its secret in a file that only this user can read."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any

from cerebras_tensorflow import files

TOKEN_BYTES = 32


def new_token() -> str:
    """Return a secret for one server of one launch."""
    return secrets.token_hex(TOKEN_BYTES)


def announce(path: Path, about: dict[str, Any]) -> None:
    """Write an announcement in one atomic step. Only this user can read it (mode 0600).

    Raises:
        OSError: If it cannot be written.
    """
    files.write_text(path, json.dumps(about), permissions=0o600)


def read_announcement(path: Path) -> dict[str, Any] | None:
    """Return what a server has announced. None if it has not announced anything yet.

    Raises:
        PermissionError: If the file belongs to another user, who may have forged it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with open(descriptor, encoding="utf-8") as file:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise PermissionError(f"{path} belongs to another user; expected a file of this launch")
        about: dict[str, Any] = json.load(file)
        return about
