"""Servers of a launch bear callers that are silent, or too many. test_every_server.py attacks all servers."""

from __future__ import annotations

import queue
import socket
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import grpc
import pytest

from cerebras_tensorflow.runtime.host.gate import MAX_CONNECTIONS
from cerebras_tensorflow.runtime.input_workers import process as input_worker
from cerebras_tensorflow.runtime.input_workers import protocol
from cerebras_tensorflow.runtime.weight_store import server as weight_server

TIMEOUT_S = 10


def refusal(call: Callable[[], object]) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as error:
        call()
    return error.value.code()


@pytest.mark.parametrize(
    ("module", "key", "method"),
    [
        (input_worker, protocol.TOKEN_KEY, protocol.BATCHES),
        (weight_server, weight_server.TOKEN_KEY, f"/{weight_server.SERVICE}/Open"),
    ],
)
def test_silent_calls_without_the_token_block_nobody(module: Any, key: str, method: str) -> None:
    server, port = module.start("127.0.0.1", "secret")
    never: queue.SimpleQueue[None] = queue.SimpleQueue()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        silent = [channel.stream_stream(method)(iter(never.get, None)) for _ in range(4 * module.THREADS)]
        call = channel.unary_unary(method)
        # The server has read the message and found it wrong.
        code = refusal(lambda: call(b"x", metadata=((key, "secret"),), timeout=TIMEOUT_S))
        assert code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.INVALID_ARGUMENT)
        assert {refusal(lambda one=one: next(one)) for one in silent} == {grpc.StatusCode.UNAUTHENTICATED}
        for _ in silent:
            never.put(None)
    server.stop(None)


@pytest.mark.parametrize("module", [input_worker, weight_server])
def test_a_server_closes_connections_beyond_its_limit(module: Any) -> None:
    server, port = module.start("127.0.0.1", "secret")
    with ExitStack() as stack:
        links = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(MAX_CONNECTIONS + 9)]
        for link in links:
            link.settimeout(TIMEOUT_S)
        first = [link.recv(1) for link in links]  # HTTP/2 settings, or the end
        assert first.count(b"") == 9
    server.stop(None)
