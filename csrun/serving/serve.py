"""`cs-system serve`: makes a system and the jobs of this user available over gRPC, to csctl and to other hosts."""

from __future__ import annotations

import ipaddress
import os
import shlex
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cerebras_tensorflow.config import env
from cerebras_tensorflow.errors import SettingsError
from cerebras_tensorflow.system import token
from csrun.shell.ssh import SshSettings, served

if TYPE_CHECKING:
    import grpc


@dataclass(frozen=True)
class Settings:
    """How the server listens.

    Attributes:
        host: Address to listen on.
        port: TCP port; 0 chooses a free one.
        certificate: PEM file with the server's certificate; None: no TLS, on loopback only.
        key: PEM file with the certificate's private key.
        token_file: File with the token that clients must send. None: the token file of the home, on loopback only.
        config: File to write for the published csctl's --csconfig; None: do not write one.
        system: Name of the system that other hosts get at this address.
        ssh: Settings of the `cs>` shell over ssh; None: no shell.
    """

    host: str
    port: int
    certificate: Path | None
    key: Path | None
    token_file: Path | None
    config: Path | None
    system: str
    ssh: SshSettings | None = None


def serve(home: Path, settings: Settings) -> None:
    """Serve until SIGINT or SIGTERM.

    Raises:
        SettingsError: If TLS or the token is missing beyond loopback, if other users may read a secret, if no user
            could log in to the shell, or if an address cannot be used.
    """
    import grpc

    from cerebras_tensorflow.system import registry
    from csrun.csctl import server as cluster
    from csrun.serving import gate
    from csrun.serving import systems as system_server

    name = registry.read(home, settings.system).name
    token_file = _token_file(home, settings)
    server = grpc.server(
        ThreadPoolExecutor(gate.MAX_THREADS),
        options=gate.OPTIONS,
        interceptors=[gate.Gate(token.read(token_file))],
        maximum_concurrent_rpcs=gate.MAX_THREADS,
    )
    cluster.add_to(server, home)
    system_server.add_to(server, home, name)
    port, certificate = _bound(server, settings)
    reachable = f"{settings.host}:{port}"
    if settings.config is not None:
        try:
            settings.config.write_text(cluster.client_config(reachable, certificate), encoding="utf-8")
        except OSError as exc:
            raise SettingsError(f"cannot write {settings.config} for csctl: {exc.strerror}") from exc
    with ExitStack() as stack:
        ended = stack.enter_context(_stop_signals())
        if settings.ssh is not None:
            at = stack.enter_context(served(home, name, settings.ssh))
            print(f"The shell: ssh admin@{settings.ssh.host} -p {at.port}, host key {at.fingerprint}.", flush=True)
        server.start()
        stack.callback(lambda: server.stop(grace=1.0).wait())
        print(
            f"Serving {name} and the jobs of {home} on {reachable}. Ctrl-C ends it. "
            f"Clients need the token: export {env.TOKEN}=$(cat {shlex.quote(str(token_file))})",
            flush=True,
        )
        os.read(ended, 1)


def _bound(server: grpc.Server, settings: Settings) -> tuple[int, bytes | None]:
    """Bind a server to its address; return the port, and the certificate if it has one."""
    import grpc

    address = f"{settings.host}:{settings.port}"
    try:
        if settings.certificate is None or settings.key is None:
            return server.add_insecure_port(address), None
        certificate = settings.certificate.read_bytes()
        credentials = grpc.ssl_server_credentials([(settings.key.read_bytes(), certificate)])
        return server.add_secure_port(address, credentials), certificate
    except (OSError, RuntimeError) as exc:
        raise SettingsError(f"cannot listen on {address}: {exc}") from exc


@contextmanager
def _stop_signals() -> Iterator[int]:
    """Yield a file descriptor that becomes readable at the first SIGINT or SIGTERM.

    A handler that sets a threading.Event is not enough. Python runs handlers only in the main thread. If another thread
    gets the signal, or if it arrives just before the wait, the main thread sleeps on and the handler never runs.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    previous = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(previous)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)


def _token_file(home: Path, settings: Settings) -> Path:
    has_tls = settings.certificate is not None and settings.key is not None
    if not has_tls and (settings.certificate or settings.key):
        raise SettingsError("--tls-cert and --tls-key need each other: without one of them there is no TLS")
    if not _is_loopback(settings.host) and not (has_tls and settings.token_file):
        raise SettingsError(
            f"{settings.host} is reachable from other hosts: that needs --tls-cert, --tls-key and --token-file. "
            "Or listen on 127.0.0.1, which needs none of them"
        )
    if settings.key is not None and settings.key.exists() and settings.key.stat().st_mode & 0o077:
        raise SettingsError(f"others may read {settings.key}: chmod 600 it, and make a new key")
    return token.make(home) if settings.token_file is None else settings.token_file


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
