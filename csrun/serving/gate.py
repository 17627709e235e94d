"""Guards every call of the server: checks the token, limits the client's time to send a request, limits streams."""

from __future__ import annotations

import hmac
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc

from cerebras_tensorflow.config import env

REQUEST_TIMEOUT_S = 10.0
MAX_THREADS = 128
MAX_CONNECTIONS = 256
MAX_STREAMS = 96
"""Each run that holds or waits for a system takes a thread. The remaining threads answer other calls."""

OPEN_METHODS = ("/GetServerConfig",)
"""The published csctl calls this without a token, to ask whether it needs one."""

OPTIONS = [
    ("grpc.so_reuseport", 0),
    # Notice that a client's host is lost, so that the next run gets the system.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    # Limits for clients that connect and send nothing, or too much.
    ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 300_000),
    ("grpc.max_concurrent_streams", MAX_THREADS),
    ("grpc.max_receive_message_length", 1 << 20),
    ("grpc.max_metadata_size", 16 << 10),
]


class Gate(grpc.ServerInterceptor):
    """Lets calls with the right token through. Final.

    A call without the right token is refused before its request is read, so such calls cannot occupy the threads. For
    this, every method is served as a stream; a client sees no difference.

    Args:
        token: The token that a client must send.
        timeout_s: Time that a client with the right token has to send its first message.
    """

    def __init__(self, token: str, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        self._token = token.encode()
        self._timeout_s = timeout_s
        self._streams = threading.BoundedSemaphore(MAX_STREAMS)

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        """Return the handler of a call, or one that refuses it."""
        given = dict(details.invocation_metadata).get("auth-token", "")
        given = given if isinstance(given, bytes) else str(given).encode()
        if not details.method.endswith(OPEN_METHODS) and not hmac.compare_digest(given, self._token):
            return grpc.stream_stream_rpc_method_handler(_refuse)
        handler = continuation(details)
        if handler is None:
            return None
        behaviour = (
            self._one_answer(handler.unary_unary) if handler.unary_unary else self._stream(handler.stream_stream)
        )
        return grpc.stream_stream_rpc_method_handler(
            behaviour, handler.request_deserializer, handler.response_serializer
        )

    def _one_answer(self, answer: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Iterator[Any]]:
        def behaviour(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
            yield answer(self._first(requests, context), context)

        return behaviour

    def _stream(self, answers: Callable[[Any, Any], Iterator[Any]]) -> Callable[[Any, Any], Iterator[Any]]:
        def behaviour(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
            if not self._streams.acquire(blocking=False):
                context.abort(
                    grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MAX_STREAMS} runs wait or run here already; try later"
                )
            try:
                yield from answers(_with_first(self._first(requests, context), requests), context)
            finally:
                self._streams.release()

        return behaviour

    def _first(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Any:
        timer = threading.Timer(self._timeout_s, context.cancel)
        timer.daemon = True
        timer.start()
        try:
            return next(requests)
        except StopIteration:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call has no request")
        finally:
            timer.cancel()


def _with_first(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def _refuse(requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
    del requests
    context.abort(grpc.StatusCode.UNAUTHENTICATED, f"wrong or missing token; set {env.TOKEN}")
    yield
