"""The `cs>` shell over ssh: checks who may log in, and what they may do. `cs-system serve --ssh` starts it.

`admin` logs in with a key of the administrators' list or with the password, and may change the system. Any other name
logs in with a key of the viewers' list, and may only look. Both lists have the format of ~/.ssh/authorized_keys and are
read at each login. Logins get the shell only: no file transfer, no forwarding. The server is asyncssh.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cerebras_tensorflow import files
from cerebras_tensorflow.errors import SettingsError
from csrun.shell.commands import Login

ADMINISTRATOR = "admin"
HOST_KEY_FILE = "ssh_host_key"
LOGIN_TIMEOUT_S = 60.0
WRONG_PASSWORD_PAUSE_S = 1.0
MAX_CONNECTIONS = 100
MAX_SHELLS = 100
"""Each shell is a process."""
MAX_VIEWERS = 80
"""Most connections of viewers, and most of their shells. The others are for administrators."""
MAX_SHELLS_OF_ONE = 10
"""Most shells of one connection, which may ask for any number of them."""


@dataclass(frozen=True)
class SshSettings:
    """Where the shell listens, and who may log in.

    Attributes:
        host, port: Where to listen; port 0 chooses a free one.
        admin_keys: File with the keys that may log in as `admin`; None: no keys.
        viewer_keys: File with the keys that may log in under any other name; None: no keys.
        password_file: File with the password of `admin`; only its owner may be able to read it. None: no password.
        host_key: File with the server's key; created if it is missing.
    """

    host: str
    port: int
    admin_keys: Path | None
    viewer_keys: Path | None
    password_file: Path | None
    host_key: Path


@dataclass(frozen=True)
class Listening:
    """A server that listens: its port and the fingerprint of its key."""

    port: int
    fingerprint: str


@contextmanager
def served(home: Path, system: str, settings: SshSettings) -> Iterator[Listening]:
    """Serve the shell of a system from its own thread until the `with` block ends.

    Raises:
        SettingsError: If no user could log in, the address cannot be used, or asyncssh is not installed.
    """
    try:
        import asyncssh
    except ImportError as exc:
        raise SettingsError('the shell over ssh needs asyncssh: pip install "cerebras_tensorflow[ssh]"') from exc
    _check(settings)
    key = _host_key(asyncssh, settings.host_key)
    started: Future[tuple[int, Callable[[], object]]] = Future()

    async def listen_until_ended() -> None:
        loop, end = asyncio.get_running_loop(), asyncio.Event()
        acceptor = await _listen(asyncssh, home, system, settings, key)
        started.set_result((acceptor.get_port(), lambda: loop.call_soon_threadsafe(end.set)))
        await end.wait()
        acceptor.close()

    def run() -> None:
        try:
            asyncio.run(listen_until_ended())  # on return it cancels the logins, and they end their shells
        except BaseException as exc:
            if started.done():
                raise
            started.set_exception(exc)

    thread = threading.Thread(target=run, name="ssh", daemon=True)
    thread.start()
    try:
        port, end = started.result()
    except OSError as exc:
        raise SettingsError(f"cannot listen on {settings.host}:{settings.port} for ssh: {exc}") from exc
    try:
        yield Listening(port, key.get_fingerprint())
    finally:
        end()
        thread.join()


class Door:
    """State that all connections share: numbers of connections and shells, and locks for password checks. Final."""

    def __init__(self) -> None:
        self._connections = 0
        self._viewers = 0
        self._shells: Counter[Any] = Counter()  # connection -> its shells
        self._viewers_shells = 0
        self._turns = [asyncio.Lock() for _ in range(64)]

    def comes_in(self) -> bool:
        """Count a connection, and return whether there is room for it."""
        self._connections += 1
        return self._connections <= MAX_CONNECTIONS

    def views(self) -> bool:
        """Count a connection as a viewer's, and return whether there is room for it."""
        self._viewers += 1
        return self._viewers <= MAX_VIEWERS

    def goes_out(self, is_viewer: bool) -> None:
        """Count a connection that has ended."""
        self._connections -= 1
        self._viewers -= is_viewer

    async def serve(self, process: Any, shell: Callable[[Any], Awaitable[None]]) -> None:
        """Run a shell for a client, unless too many run."""
        connection = process.get_extra_info("connection")
        is_viewer = not process.get_extra_info("login").may_change
        limit = self._reached(connection, is_viewer)
        if limit:
            process.stderr.write(f"{limit} are open already; close one, or try later\n".encode())
            process.exit(1)
            return
        self._shells[connection] += 1
        self._viewers_shells += is_viewer
        try:
            await shell(process)
        finally:
            self._shells[connection] -= 1
            self._viewers_shells -= is_viewer
            self._shells += Counter()  # forgets connections without a shell

    def _reached(self, connection: Any, is_viewer: bool) -> str:
        """Return the limit that allows a connection no further shell, as text; empty if there is none."""
        if self._shells[connection] >= MAX_SHELLS_OF_ONE:
            return f"{MAX_SHELLS_OF_ONE} shells of this connection"
        if is_viewer and self._viewers_shells >= MAX_VIEWERS:
            return f"{MAX_VIEWERS} shells of viewers"
        return f"{MAX_SHELLS} shells" if self._shells.total() >= MAX_SHELLS else ""

    def turn(self, host: str) -> asyncio.Lock:
        """Return a host's lock for password checks: one guess at a time, over all its connections."""
        return self._turns[hash(host) % len(self._turns)]


class Gate:
    """Decides who may log in on one connection, through the methods that asyncssh calls. Final."""

    def __init__(self, settings: SshSettings, door: Door) -> None:
        self._settings = settings
        self._door = door
        self._connection: Any = None
        self._proof = ""
        self._is_viewer = False

    def connection_made(self, connection: Any) -> None:
        """Keep the connection; end it if there are too many."""
        self._connection = connection
        if not self._door.comes_in():
            connection.abort()

    def connection_lost(self, _error: Exception | None) -> None:
        """Count the connection as ended; its session ends by itself."""
        self._door.goes_out(self._is_viewer)

    def begin_auth(self, _username: str) -> bool:
        """Return that every user must authenticate."""
        return True

    def public_key_auth_supported(self) -> bool:
        """Return that keys are accepted."""
        return True

    def validate_public_key(self, username: str, key: Any) -> bool:
        """Return whether a key is in the list for a user. asyncssh then checks that the client has the private key."""
        import asyncssh

        path = self._settings.admin_keys if username == ADMINISTRATOR else self._settings.viewer_keys
        if path is None:
            return False
        host = self._host()
        entry = asyncssh.read_authorized_keys(str(path)).validate(key, host, host)
        self._proof = key.get_fingerprint()
        return entry is not None

    def password_auth_supported(self) -> bool:
        """Return whether passwords are accepted: only if a password file is set."""
        return self._settings.password_file is not None

    async def validate_password(self, username: str, password: str) -> bool:
        """Return whether a password is the administrator's. After a wrong one, the client's host has to wait."""
        path = self._settings.password_file
        self._proof = "password"
        async with self._door.turn(self._host()):
            is_right = path is not None and hmac.compare_digest(password.encode(), _password(path).encode())
            if is_right and username == ADMINISTRATOR:
                return True
            await asyncio.sleep(WRONG_PASSWORD_PAUSE_S)
            return False

    def auth_completed(self) -> None:
        """Remember who has logged in; end the connection if there are too many of viewers."""
        username = self._connection.get_extra_info("username")
        login = Login(f"{username} ({self._proof}) from {self._host()}", may_change=username == ADMINISTRATOR)
        self._connection.set_extra_info(login=login)
        if not login.may_change:
            self._is_viewer = True
            if not self._door.views():
                self._connection.abort()

    def _host(self) -> str:
        return str(self._connection.get_extra_info("peername")[0])


async def _listen(asyncssh: Any, home: Path, system: str, settings: SshSettings, key: Any) -> Any:
    from csrun.shell.ssh_session import serve_login

    class Server(Gate, asyncssh.SSHServer):
        """A Gate with the base class that asyncssh requires."""

    door = Door()
    return await asyncssh.create_server(
        lambda: Server(settings, door),
        settings.host,
        settings.port,
        server_host_keys=[key],
        process_factory=lambda process: door.serve(process, partial(serve_login, home=home, system=system)),
        encoding=None,
        line_editor=False,
        agent_forwarding=False,
        x11_forwarding=False,
        allow_scp=False,
        gss_host=None,
        kbdint_auth=False,
        login_timeout=LOGIN_TIMEOUT_S,
        keepalive_interval=10,
    )


def _check(settings: SshSettings) -> None:
    if not (settings.admin_keys or settings.viewer_keys or settings.password_file):
        raise SettingsError(
            "no user could log in: --ssh needs --ssh-admin-keys, --ssh-viewer-keys or --ssh-password-file"
        )
    for path in filter(None, (settings.admin_keys, settings.viewer_keys, settings.password_file)):
        if not os.access(path, os.R_OK):
            raise SettingsError(f"{path} cannot be read")
    if settings.password_file is not None:
        if settings.password_file.stat().st_mode & 0o077:
            raise SettingsError(f"others may read {settings.password_file}: chmod 600 it")
        if not _password(settings.password_file):
            raise SettingsError(f"{settings.password_file} is empty: expected a password")


def _password(path: Path) -> str:
    return path.read_text(encoding="utf-8").rstrip("\r\n")


def _host_key(asyncssh: Any, path: Path) -> Any:
    if not path.exists():
        key = asyncssh.generate_private_key("ssh-ed25519")
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_bytes(path, key.export_private_key(), 0o600)
    try:
        return asyncssh.read_private_key(str(path))
    except (OSError, asyncssh.KeyImportError) as exc:
        raise SettingsError(f"{path} is not a private key for the ssh server: {exc}") from exc
