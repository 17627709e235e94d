"""The token that clients of `cs-system serve` send: created on first use, readable by its owner only."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from cerebras_tensorflow import files
from cerebras_tensorflow.config import env
from cerebras_tensorflow.errors import SettingsError

NAME = "serve_token"
LEAST_BYTES = 4
_MOST_BYTES = 1024
LISTENING = "0A"


def make(home: Path) -> Path:
    """Return the file with the token of a home; create it if it is missing.

    Raises:
        SettingsError: If it cannot be created.
    """
    path = home / NAME
    if path.exists():
        return path
    try:
        with files.closed_to_others():
            home.mkdir(parents=True, exist_ok=True)
        files.create_once(path, f"{secrets.token_urlsafe(32)}\n".encode())
    except OSError as exc:
        raise SettingsError(f"cannot create the token file for clients, {path}: {exc}") from exc
    return path


def read(path: Path) -> str:
    """Return the token in a file.

    Raises:
        SettingsError: If other users may read it or own it, or it holds no token. The text says what to do.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, encoding="utf-8") as file:
            status = os.fstat(handle)
            token = file.read(_MOST_BYTES + 2).strip()
    except (OSError, ValueError) as exc:
        raise SettingsError(f"cannot read the token in {path}: {exc}") from exc
    if status.st_mode & 0o077:
        raise SettingsError(f"others may read {path}: chmod 600 it, and put a new token into it")
    if status.st_uid not in (0, os.getuid()):
        raise SettingsError(f"{path} belongs to another user, who knows the token in it")
    if len(token) < LEAST_BYTES:
        raise SettingsError(f"{path} is empty or too short: expected a token of at least {LEAST_BYTES} characters")
    if len(token) > _MOST_BYTES or not token.isascii() or not token.isprintable():
        raise SettingsError(f"{path}: expected a token of one line, of at most {_MOST_BYTES} ASCII characters")
    return token


def for_server(host: str, port: int) -> str:
    """Return the token for a server: CSAUTH_TOKEN, or else this home's, if the server belongs to this user or root.

    A process of another user may listen on the server's port of this machine. It must never get the home's token.
    """
    environment = env.read()
    if environment.token:
        return environment.token
    path = environment.home / NAME
    if host.strip("[]") not in ("localhost", "127.0.0.1", "::1") or not path.exists():
        return ""
    owners = _owners_of_listeners(port)
    if not owners or not owners <= {0, os.getuid()}:
        return ""
    try:
        return read(path)
    except SettingsError:
        return ""


def _owners_of_listeners(port: int) -> set[int]:
    """Return the users whose sockets listen on a port of this machine."""
    owners = set()
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/net/{name}").read_text(encoding="ascii").splitlines()[1:]:
                words = line.split()
                if words[3] == LISTENING and int(words[1].rpartition(":")[2], 16) == port:
                    owners.add(int(words[7]))
    return owners
