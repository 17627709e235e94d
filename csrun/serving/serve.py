"""`cs-system serve`: makes this user's systems and jobs reachable over gRPC, for csctl and for other hosts."""

from __future__ import annotations

import ipaddress
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from cerebras_tensorflow.errors import SettingsError
from csrun.shell.ssh import SshSettings, served

MAX_THREADS = 128
"""A waiting run keeps a thread."""

OPTIONS = [
    ("grpc.so_reuseport", 0),
    # A client whose host has gone is noticed, and its system given to the next.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
]


@dataclass(frozen=True)
class Settings:
    """How the server listens.

    Attributes:
        host: Address to listen on.
        port: TCP port; 0: any free one.
        certificate: PEM file with the server's certificate; None: no TLS, on loopback only.
        key: PEM file with its key.
        token_file: File with the token that clients must present; None: none, on loopback only.
        config: File to write for the published csctl's --csconfig; None: none.
        system: Name of the system that other hosts reach under this address.
        ssh: How its `cs>` shell is reached; None: not at all.
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
        SettingsError: If TLS or the token is missing beyond loopback, nobody could log in to the shell, or an address
            cannot be had.
    """
    import grpc

    from cerebras_tensorflow.system import registry
    from csrun.csctl import server as cluster
    from csrun.serving import systems as system_server

    name = registry.read(home, settings.system).name
    token = _checked_token(settings)
    server = grpc.server(ThreadPoolExecutor(MAX_THREADS), options=OPTIONS)
    cluster.add_to(server, home, token)
    system_server.add_to(server, home, name, token)
    address = f"{settings.host}:{settings.port}"
    certificate = None
    try:
        if settings.certificate is not None and settings.key is not None:
            certificate = settings.certificate.read_bytes()
            credentials = grpc.ssl_server_credentials([(settings.key.read_bytes(), certificate)])
            port = server.add_secure_port(address, credentials)
        else:
            port = server.add_insecure_port(address)
    except (OSError, RuntimeError) as exc:
        raise SettingsError(f"cannot listen on {address}: {exc}") from exc
    reachable = f"{settings.host}:{port}"
    if settings.config is not None:
        settings.config.write_text(cluster.client_config(reachable, certificate), encoding="utf-8")
    with ExitStack() as stack:
        ended = stack.enter_context(_stop_signals())
        if settings.ssh is not None:
            at = stack.enter_context(served(home, name, settings.ssh))
            print(f"The shell: ssh admin@{settings.ssh.host} -p {at.port}, host key {at.fingerprint}.", flush=True)
        server.start()
        stack.callback(lambda: server.stop(grace=1.0).wait())
        print(f"Serving {name} and the jobs of {home} on {reachable}. Ctrl-C ends it.", flush=True)
        os.read(ended, 1)


@contextmanager
def _stop_signals() -> Iterator[int]:
    """Give a file descriptor that can be read from the first SIGINT or SIGTERM on.

    Waiting for an event that a handler sets would miss a signal that another thread gets, or that comes just before the
    wait: the handler runs in the main thread alone, and only once that one is awake.
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


def _checked_token(settings: Settings) -> str:
    has_tls = settings.certificate is not None and settings.key is not None
    if settings.token_file is not None:
        token = settings.token_file.read_text(encoding="utf-8").strip()
        if not token:
            raise SettingsError(f"{settings.token_file} is empty: expected a token")
    else:
        token = ""
    if not _is_loopback(settings.host) and not (has_tls and token):
        raise SettingsError(
            f"{settings.host} is reachable from other hosts: that needs --tls-cert, --tls-key and --token-file. "
            "Listen on 127.0.0.1 to do without"
        )
    return token


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
