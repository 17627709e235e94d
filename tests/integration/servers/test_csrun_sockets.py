"""Servers of a launch bear callers that are silent, or too many. test_every_server.py attacks all servers."""

from __future__ import annotations

import queue
import socket
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress

import grpc
import numpy as np
import pytest

from cerebras_tensorflow.config import env
from cerebras_tensorflow.graph.program import WeightSpec
from cerebras_tensorflow.runtime.host import entrance
from cerebras_tensorflow.runtime.host.gate import MAX_CONNECTIONS
from cerebras_tensorflow.runtime.host.network import listen_address
from cerebras_tensorflow.runtime.input_workers import process as input_worker
from cerebras_tensorflow.runtime.input_workers import protocol
from cerebras_tensorflow.runtime.weight_store.remote import ServerAddress, ServerStore
from cerebras_tensorflow.runtime.weight_store.server import WeightServer

TIMEOUT_S = 10


def refusal(call: Callable[[], object]) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as error:
        call()
    return error.value.code()


def test_silent_calls_without_the_token_block_nobody() -> None:
    server, port = input_worker.start("127.0.0.1", "secret")
    never: queue.SimpleQueue[None] = queue.SimpleQueue()
    method = protocol.BATCHES
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        silent = [channel.stream_stream(method)(iter(never.get, None)) for _ in range(4 * input_worker.THREADS)]
        call = channel.unary_unary(method)
        # The server has read the message and found it wrong.
        code = refusal(lambda: call(b"x", metadata=((protocol.TOKEN_KEY, "secret"),), timeout=TIMEOUT_S))
        assert code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.INVALID_ARGUMENT)
        assert {refusal(lambda one=one: next(one)) for one in silent} == {grpc.StatusCode.UNAUTHENTICATED}
        for _ in silent:
            never.put(None)
    server.stop(None)


def test_an_input_worker_closes_connections_beyond_its_limit() -> None:
    server, port = input_worker.start("127.0.0.1", "secret")
    with ExitStack() as stack:
        links = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(MAX_CONNECTIONS + 9)]
        for link in links:
            link.settimeout(TIMEOUT_S)
        first = [link.recv(1) for link in links]  # HTTP/2 settings, or the end
        assert first.count(b"") == 9
    server.stop(None)


def test_silent_strangers_keep_the_chief_out_of_a_weight_server_only_for_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(entrance, "PROOF_LIMIT_S", 1.0)
    value = np.arange(15, dtype=np.float32)
    with closing(WeightServer("127.0.0.1", "secret")) as server, ExitStack() as stack:
        place = ("127.0.0.1", server.port)
        strangers = [stack.enter_context(socket.create_connection(place)) for _ in range(MAX_CONNECTIONS + 9)]
        store = ServerStore(
            [WeightSpec("w", "float32", (15,), 60)], [ServerAddress(0, f"127.0.0.1:{server.port}", "secret", 0)]
        )
        store.write(0, value)
        np.testing.assert_array_equal(store.read(0), value)
        for link in strangers:
            link.settimeout(TIMEOUT_S)
            with suppress(ConnectionResetError):
                while link.recv(64):
                    pass
        np.testing.assert_array_equal(store.read(0), value)
        store.close()


@pytest.fixture
def own_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect(("203.0.113.1", 9))  # sends no packet
        return str(probe.getsockname()[0])
    pytest.skip("this machine has no network")


def test_under_slurm_servers_listen_on_the_interface_of_the_launch_only(
    own_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(env.SLURM_JOB_ID, "7")
    monkeypatch.setenv(env.SLURM_LAUNCH_ADDRESS, own_address)
    address = listen_address()
    worker, port = input_worker.start(address, "secret")
    with closing(WeightServer(address, "secret")) as server:
        for place in (port, server.port):
            socket.create_connection((own_address, place), timeout=TIMEOUT_S).close()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", place), timeout=TIMEOUT_S)
    worker.stop(None)
