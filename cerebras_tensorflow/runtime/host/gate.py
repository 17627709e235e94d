"""Protects a gRPC server of a launch from callers without its token: limits, and a check before it reads a call."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator
from typing import Any

import grpc

MAX_CONNECTIONS = 64
"""The chief needs one connection per server; any others come from strangers. The limit saves file descriptors."""

UNLIMITED = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
"""For both sides: a message may hold a batch. The gate reads no message without the token."""

LIMITS = [
    ("grpc.so_reuseport", 0),
    ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
    # Connections without a call must not keep the chief out. gRPC closes them after one to two times this period.
    ("grpc.max_connection_idle_ms", 60_000),
    ("grpc.max_concurrent_streams", 128),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_metadata_size", 16 << 10),
    # Allow the chief's keepalive pings. By default, gRPC closes the connection after three of them.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
]


class TokenGate(grpc.ServerInterceptor):
    """Refuses a call without the token before its request is read, so such calls occupy neither threads nor memory.

    Args:
        key: Metadata key of the token.
        token: The token.
    """

    def __init__(self, key: str, token: str) -> None:
        self._key = key
        self._token = token.encode()

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        """Return the handler of a call, or one that refuses it."""
        given = dict(details.invocation_metadata).get(self._key, "")
        given = given if isinstance(given, bytes) else str(given).encode()
        if hmac.compare_digest(given, self._token):
            return continuation(details)
        return grpc.stream_stream_rpc_method_handler(_refuse)


def _refuse(_requests: Iterator[Any], context: Any) -> Iterator[Any]:
    context.abort(grpc.StatusCode.UNAUTHENTICATED, "wrong token")
    yield
