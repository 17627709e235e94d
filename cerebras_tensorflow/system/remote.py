"""A simulated system that another host serves with `cs-system serve`: finds it, and holds it for a run.

The connection uses TLS if CEREBRAS_TLS_CERT names the server's certificate. The token is CSAUTH_TOKEN, as for csctl.
For a server of this user on this machine, the token can also come from CEREBRAS_HOME.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from cerebras_tensorflow.config import env
from cerebras_tensorflow.errors import ExecModeError, SystemNotFoundError, SystemStateError
from cerebras_tensorflow.system import jobs, protocol, token
from cerebras_tensorflow.system.interface import System
from cerebras_tensorflow.text import is_number

PROTO = "cerebras_tensorflow/system/systems.proto"
TLS_NAME = "simulated.cluster-server.cerebras.local"
CONNECT_TIMEOUT_S = 2.0
CALL_TIMEOUT_S = 2.5
KEEPALIVE = [("grpc.keepalive_time_ms", 10_000), ("grpc.keepalive_timeout_ms", 5_000)]


@dataclass(frozen=True)
class RemoteJob:
    """A job on a served system."""

    id: str
    number: int


@dataclass(frozen=True)
class RemoteSystem(System):
    """A served system."""

    host_port: str
    served_name: str
    served_mode: str

    @property
    def name(self) -> str:
        """Name of the system."""
        return self.served_name

    @property
    def address(self) -> str:
        """host:port, as scripts pass it."""
        return self.host_port

    @property
    def execution_mode(self) -> str:
        """`pipelined` or `weight_streaming`."""
        return self.served_mode

    @contextmanager
    def run(
        self,
        execution_mode: str,
        description: str = "",
        on_wait: Callable[[str], None] | None = None,
        num_csx: int = 1,  # noqa: ARG002 - another host serves one system, which simulates all of them
    ) -> Iterator[RemoteJob]:
        """Hold the system for one run, as interface.System.run says.

        If the job is cancelled, this process gets a SIGTERM. If the connection breaks, the server starts the next job,
        but this run continues: it computes on its own host and does not need the simulated system.
        """
        import grpc

        requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        messages = protocol.load(PROTO).messages
        begin = messages.Begin(
            execution_mode=execution_mode, description=description, user=jobs.user_name(), labels=_own_labels()
        )
        requests.put(messages.RunRequest(begin=begin))
        with _channel(self.address) as channel:
            events = (
                protocol.load(PROTO)
                .services["Systems"]
                .stub(channel)
                .Run(iter(requests.get, None), metadata=_metadata(self.address))
            )
            try:
                job = _first_job(events, on_wait)
            except grpc.RpcError as exc:
                raise _as_ours(exc, self.address) from exc
            watcher = threading.Thread(target=_watch, args=(events,), daemon=True)
            watcher.start()
            phase, message = jobs.FAILED, ""
            try:
                yield job
                phase = jobs.SUCCEEDED
            except BaseException as exc:
                message = f"{type(exc).__name__}: {exc}"
                raise
            finally:
                requests.put(messages.RunRequest(end=messages.End(phase=phase, message=message)))
                requests.put(None)
                watcher.join(CALL_TIMEOUT_S)


def find(address: str) -> RemoteSystem | None:
    """Return the system that is served at an address; None if nothing, or another service, listens there.

    Raises:
        SystemNotFoundError: If the server gives no usable answer, or refuses the token or the certificate.
    """
    if not _listens(address):
        return None
    import grpc

    messages = protocol.load(PROTO).messages
    with _channel(address) as channel:
        try:
            shown = (
                protocol.load(PROTO)
                .services["Systems"]
                .stub(channel)
                .Show(messages.ShowRequest(), metadata=_metadata(address), timeout=CALL_TIMEOUT_S)
            )
        except grpc.RpcError as exc:
            if exc.code() == grpc.StatusCode.UNIMPLEMENTED:
                return None
            raise SystemNotFoundError(
                f"something listens at {address}, but no simulated CS-2 there admits this user: {exc.details()}. "
                f"Check the address, {env.TOKEN} and {env.TLS_CERT}; or register a system of your own there with "
                f"`cs-system create NAME --address {address}`; or leave out --cs_ip to run on the embedded system."
            ) from exc
    return RemoteSystem(address, shown.name, shown.execution_mode)


def _listens(address: str) -> bool:
    """Return whether something accepts connections at host:port, within CONNECT_TIMEOUT_S."""
    host, _, port = address.rpartition(":")
    connected = threading.Event()

    def connect() -> None:
        with suppress(OSError):
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()
            connected.set()
        ended.set()

    # In a separate thread, because a name look-up has no time limit: without a name server it takes half a minute.
    ended = threading.Event()
    threading.Thread(target=connect, daemon=True).start()
    ended.wait(CONNECT_TIMEOUT_S)
    return connected.is_set()


def _own_labels() -> dict[str, str]:
    """Return the labels of this process's launch; empty outside a launch."""
    environment = env.read()
    if environment.job_id is None or not is_number(environment.job_id):
        return {}
    try:
        return dict(jobs.record(environment.home, int(environment.job_id)).labels)
    except SystemStateError:
        return {}


def _first_job(events: Any, on_wait: Callable[[str], None] | None) -> RemoteJob:
    for event in events:
        if event.job_id:
            return RemoteJob(event.job_id, event.job_number)
        if on_wait is not None:
            on_wait(event.waiting_for)
    raise SystemStateError("the server ended the call without giving the system")


def _watch(events: Any) -> None:
    import grpc

    with suppress(grpc.RpcError):
        for event in events:
            if event.is_cancelled:
                os.kill(os.getpid(), signal.SIGTERM)


def _as_ours(exc: Any, address: str) -> SystemStateError:
    import grpc

    kinds = {grpc.StatusCode.FAILED_PRECONDITION: ExecModeError, grpc.StatusCode.UNAVAILABLE: SystemNotFoundError}
    return kinds.get(exc.code(), SystemStateError)(f"{address}: {exc.details()}")


def _channel(address: str) -> Any:
    import grpc

    certificate = env.read().tls_certificate
    if certificate is None:
        return grpc.insecure_channel(address, options=KEEPALIVE)
    options = [*KEEPALIVE, ("grpc.ssl_target_name_override", TLS_NAME)]
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(certificate.read_bytes()), options=options)


def _metadata(address: str) -> tuple[tuple[str, str], ...]:
    host, _, port = address.rpartition(":")
    value = token.for_server(host, int(port))
    return (("auth-token", value),) if value else ()
