"""Weights on weight servers: tests of this store only. test_stores.py tests what all stores share."""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from cerebras_tensorflow.config import env
from cerebras_tensorflow.errors import StoreError
from cerebras_tensorflow.graph.program import WeightSpec, dtype_from_name
from cerebras_tensorflow.runtime.host import gate, stopping
from cerebras_tensorflow.runtime.weight_store import remote
from cerebras_tensorflow.runtime.weight_store import server as weight_server_process
from cerebras_tensorflow.runtime.weight_store.remote import (
    ServerAddress,
    ServerStore,
    have_room,
    shares,
    start_weight_servers,
)
from cerebras_tensorflow.runtime.weight_store.wire import PIECE_BYTES, Packing

TOKEN = "token"
ROWS = 3 * PIECE_BYTES // 4096 + 1  # a weight of several pieces and a bit
SPECS = (WeightSpec("large", "float32", (ROWS, 1024), ROWS * 4096), WeightSpec("small", "float32", (5, 3), 60))


@contextmanager
def weight_servers(count: int, token: str = TOKEN) -> Iterator[list[ServerAddress]]:
    """Yield the addresses of servers that run in this process."""
    servers = [weight_server_process.start("127.0.0.1", TOKEN) for _ in range(count)]
    yield [ServerAddress(index, f"127.0.0.1:{port}", token, 1 << 30) for index, (_, port) in enumerate(servers)]
    for server, _ in servers:
        server.stop(grace=None).wait()


@pytest.fixture
def store() -> Iterator[ServerStore]:
    """A store on two servers, filled with numbers."""
    with weight_servers(2) as servers:
        opened = ServerStore(SPECS, servers)
        opened.write(0, np.arange(ROWS * 1024, dtype=np.float32).reshape(ROWS, 1024))
        opened.write(1, np.ones((5, 3), np.float32))
        yield opened
        opened.close()


def test_shares_are_even_and_the_same_every_time() -> None:
    specs = [WeightSpec(str(size), "float32", (size,), 4 * size) for size in (1, 9, 5, 4, 1)]
    assert shares(specs, 2) == [0, 0, 1, 1, 1]
    assert shares(specs, 1) == [0] * 5


def test_a_large_weight_is_read_whole_in_slices_and_in_rows(store: ServerStore) -> None:
    whole = np.arange(ROWS * 1024, dtype=np.float32).reshape(ROWS, 1024)
    np.testing.assert_array_equal(store.read(0), whole)
    np.testing.assert_array_equal(store.read_slice(0, 500, ROWS), whole[500:])
    rows = np.array([[ROWS - 1, 0], [7, 7]])
    np.testing.assert_array_equal(store.read_rows(0, rows), whole[rows])
    store.write_slice(0, 500, -whole[500:])
    np.testing.assert_array_equal(store.read_slice(0, 499, 502), np.stack([whole[499], -whole[500], -whole[501]]))
    assert store.read(0).ctypes.data % 64 == 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool"])
def test_a_sparse_weight_moves_few_bytes_and_keeps_every_bit(dtype: str) -> None:
    random = np.random.default_rng(0)
    width = 4 if dtype == "float32" else 2 if dtype == "bfloat16" else 1
    spec = WeightSpec("w", dtype, (ROWS, 1024), ROWS * 1024 * width)
    value = np.where(random.random((ROWS, 1024)) < 0.1, random.normal(size=(ROWS, 1024)), 0.0)
    value[7, 3] = -0.0
    value = value.astype(dtype_from_name(dtype))
    moved = []
    with weight_servers(1) as servers:
        for content in (np.ones_like(value), value):
            store = ServerStore([spec], servers)
            store.write(0, content)
            assert store.read(0).tobytes() == content.tobytes()
            assert store.read_slice(0, 500, ROWS).tobytes() == content[500:].tobytes()
            snapshot = store.snapshot()
            store.write_slice(0, 1, content[:-1])
            assert b"".join(piece.tobytes() for piece in snapshot.pieces(0)) == content.tobytes()
            snapshot.close()
            store.flush()
            moved.append(store.wire_bytes)
            store.close()
    (read_dense, written_dense), (read, written) = moved
    if dtype == "bool":  # a bit for each element, whatever its value
        assert (read, written) == (read_dense, written_dense)
        assert written * 7 < 2 * value.nbytes
    else:
        assert read * 4 < read_dense
        assert written * 4 < written_dense


def test_reading_rows_that_were_never_written_is_an_error() -> None:
    with weight_servers(1) as servers:
        store = ServerStore(SPECS, servers)
        with pytest.raises(StoreError, match="small was never written"):
            store.read(1)
        store.write_slice(1, 0, np.ones((2, 3), np.float32))
        assert store.read_slice(1, 0, 2).shape == (2, 3)
        for read in (lambda: store.read(1), lambda: store.read_rows(1, np.array([4]))):
            with pytest.raises(StoreError, match="small was never written"):
                read()
        store.close()


def test_a_snapshot_keeps_what_training_changes(store: ServerStore) -> None:
    snapshot = store.snapshot()
    store.write_slice(1, 3, np.zeros((2, 3), np.float32))
    store.write(0, np.zeros((ROWS, 1024), np.float32))
    kept = np.concatenate(list(snapshot.pieces(1))).view(np.float32)
    np.testing.assert_array_equal(kept, np.ones(15, np.float32))
    np.testing.assert_array_equal(store.read(1)[:, 0], [1, 1, 1, 0, 0])
    with pytest.raises(StoreError, match="has not been closed"):
        store.snapshot()
    store.close()
    first = next(iter(snapshot.pieces(0))).view(np.float32)
    np.testing.assert_array_equal(first[:3], [0, 1, 2])
    snapshot.release(0)
    snapshot.close()


def test_the_error_of_a_dead_server_names_it_and_no_call_waits(
    store: ServerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "STAY_S", 1.0)  # gRPC may lose a call that begins while its server stops
    with weight_servers(1) as servers:
        other = ServerStore(SPECS, servers)
        other.write(1, np.ones((5, 3), np.float32))
        other.flush()
    with pytest.raises(StoreError, match=r"weight server 0 at 127\.0\.0\.1:\d+ fails"):
        other.read(1)
    other.write(1, np.ones((5, 3), np.float32))
    with pytest.raises(StoreError, match="goes on from the last checkpoint"):
        other.flush()
    other.close()


def test_a_server_that_refuses_a_call_still_frees_the_share() -> None:
    with weight_servers(1) as servers, grpc.insecure_channel(servers[0].target) as channel:
        store = ServerStore([SPECS[1]], servers)
        with pytest.raises(StoreError, match="weight server 0"):
            list(store._links[0].held_pieces(7, 4, Packing()))
        store.close()
        with pytest.raises(grpc.RpcError, match="no store"):
            channel.unary_unary(f"/{weight_server_process.SERVICE}/Hold")(header(1, 0, 0, 0, 0), metadata=KEY)


def test_after_a_signal_to_stop_a_server_that_hangs_is_given_up_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [sys.executable, "-m", weight_server_process.__name__, str(tmp_path), "0"]
    with subprocess.Popen(words) as process, ExitStack() as cleanup:
        cleanup.callback(process.kill)
        monkeypatch.setattr(stopping, "ANSWER_LIMIT_S", 0.5)
        announced = {env.ROLE: "chief", env.WEIGHT_SERVERS: "1", env.INPUT_FOLDER: str(tmp_path)}
        store = ServerStore(SPECS, start_weight_servers(env.read(announced)))
        store.write(1, np.ones((5, 3), np.float32))
        store.flush()
        process.send_signal(signal.SIGSTOP)
        monkeypatch.setattr(stopping.requested, "is_set", lambda: True)
        with pytest.raises(StoreError, match=r"fails: no answer for 0\.5 s.*goes on from the last checkpoint"):
            store.read(1)
        store.close()


def test_close_waits_for_a_server_that_hangs_no_longer_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {}
    method = remote._Link._method

    def noted(link: Any, kind: str, name: str) -> Any:
        def call(*args: Any, timeout: float | None = None, **words: Any) -> Any:
            limits[name] = timeout
            return method(link, kind, name)(*args, timeout=timeout, **words)

        return call

    monkeypatch.setattr(remote._Link, "_method", noted)
    with weight_servers(1) as servers:
        ServerStore(SPECS[1:], servers).close()
    assert limits["Close"] == stopping.ANSWER_LIMIT_S


@pytest.mark.parametrize("sent", [[b"short"], [], [bytes(61)], [bytes(60), bytes(60)]])
def test_malformed_pieces_of_a_snapshot_are_an_error_of_the_store(
    sent: list[bytes], store: ServerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = store.snapshot()
    monkeypatch.setattr(remote._Link, "_messages", lambda *_: iter(sent))
    with pytest.raises(StoreError, match=r"weight server \d sent malformed bytes"):
        list(snapshot.pieces(1))
    snapshot.close()


def test_another_token_is_refused() -> None:
    with weight_servers(1, token="wrong") as servers, pytest.raises(StoreError, match="wrong token"):
        ServerStore(SPECS, servers)


def test_a_server_without_enough_memory_is_an_error() -> None:
    huge = [WeightSpec("huge", "uint8", (1 << 50,), 1 << 50)]
    with weight_servers(1) as servers:
        with pytest.raises(StoreError, match=f"bytes of memory for {1 << 50} of weights"):
            ServerStore(huge, servers)
        assert have_room(servers, 1 << 29) and not have_room(servers, 1 << 30) and not have_room([], 1)


def test_servers_of_one_host_share_its_memory() -> None:
    here = [ServerAddress(index, f"127.0.0.1:{index}", TOKEN, 1 << 30) for index in range(4)]
    assert not have_room(here, 1 << 30)
    elsewhere = [ServerAddress(index, f"node{index}:1", TOKEN, 1 << 30) for index in range(4)]
    assert have_room(elsewhere, 1 << 31)


def test_the_error_without_servers_names_the_option() -> None:
    assert start_weight_servers(env.read({})) == []
    with pytest.raises(StoreError, match="--single-task-nodes 2"):
        ServerStore(SPECS, [])


def test_the_server_process_needs_no_tensorflow() -> None:
    code = f"import sys, {weight_server_process.__name__}; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


KEY = ((weight_server_process.TOKEN_KEY, TOKEN),)
HUGE = 2**64 - 1


def header(*values: int) -> bytes:
    return weight_server_process.HEADER.pack(*values)


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("Hold", header(9, 0, 0, 0, 0)),
        ("Hold", b""),
        ("Hold", b"short"),
        ("EndHold", header(HUGE, 0, 0, 0, 0)),
        ("Release", header(9, 0, 0, 0, 0)),
        ("Open", b""),
        ("Open", b"[]"),
        ("Open", b'{"a": 1}'),
        ("Open", b'{"0": -1}'),
        ("Open", b"[" * 100_000),
        ("Read", header(9, 0, 0, 8, 0)),
        ("Read", header(1, 7, 0, 8, 0)),
        ("Read", header(1, 1, 0, HUGE, 0)),
        ("Read", header(1, 1, 8, 0, 0)),
        ("Read", header(1, 1, 0, 8, 1)),
        ("Gather", header(1, 1, 0, 1, 0) + bytes(8)),
        ("Gather", header(1, 1, 12, HUGE, 0)),
        ("Gather", header(1, 1, 12, 1, 0) + np.int64(5).tobytes()),
        ("Gather", header(1, 1, 12, 1, 0) + np.int64(-1).tobytes()),
        ("Gather", header(1, 1, 7, 1, 0) + bytes(8)),
        ("Write", []),
        ("Write", [b""]),
        ("Write", [header(1, 1, 0, HUGE, 0)]),
        ("Write", [header(1, 1, 0, 4, 0), bytes(8)]),
        ("Write", [header(1, 1, 56, 64, 0), bytes(8)]),
        ("Write", [header(1, 1, 0, 8, 0), bytes(4)]),
        ("Read", header(1, 1, 0, 8, 0) + bytes(7)),
        ("Read", header(1, 1, 0, 8, 0) + Packing(3, 0.5).to_bytes()),
        ("Write", [header(1, 1, 0, 40, 0) + Packing(4, 0.5).to_bytes(), bytes(4)]),
        ("Write", [header(1, 1, 0, 40, 0) + Packing(4, 0.5).to_bytes(), b"\xff" * 20]),
        ("Write", [header(1, 1, 0, 32, 0) + Packing(4, 0.5).to_bytes(), b"\x02" + bytes(11)]),
    ],
)
def test_a_malformed_message_is_refused_with_a_status(name: str, sent: Any) -> None:
    with weight_servers(1) as servers, grpc.insecure_channel(servers[0].target) as channel:
        store = ServerStore([SPECS[1], SPECS[1]], servers)
        store.write(1, np.ones((5, 3), np.float32))
        store.flush()
        path = f"/{weight_server_process.SERVICE}/{name}"
        with pytest.raises(grpc.RpcError) as raised:
            if name == "Write":
                channel.stream_unary(path)(iter(sent), metadata=KEY, timeout=60)
            elif name in ("Read", "Gather"):
                list(channel.unary_stream(path)(sent, metadata=KEY, timeout=60))
            else:
                channel.unary_unary(path)(sent, metadata=KEY, timeout=60)
        assert raised.value.code() not in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.DEADLINE_EXCEEDED)
        if raised.value.code() is not grpc.StatusCode.DATA_LOSS:
            np.testing.assert_array_equal(store.read(1), np.ones((5, 3)))
        store.close()


def test_a_large_message_without_a_token_is_refused() -> None:
    options = gate.UNLIMITED
    with weight_servers(1) as servers, grpc.insecure_channel(servers[0].target, options=options) as channel:
        call = channel.unary_unary(f"/{weight_server_process.SERVICE}/Open")
        with pytest.raises(grpc.RpcError) as raised:
            call(bytes(65 << 20), timeout=120)
        assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_an_idle_connection_is_closed_and_the_next_call_connects_again(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(name, 500 if name == "grpc.max_connection_idle_ms" else value) for name, value in gate.LIMITS]
    monkeypatch.setattr(weight_server_process, "LIMITS", limits)
    monkeypatch.setattr(remote, "STAY_S", 3600.0)
    with weight_servers(1) as servers, grpc.insecure_channel(servers[0].target) as stranger:
        store = ServerStore(SPECS[1:], servers)
        states: queue.SimpleQueue[grpc.ChannelConnectivity] = queue.SimpleQueue()
        stranger.subscribe(states.put, try_to_connect=True)
        while states.get(timeout=30) is not grpc.ChannelConnectivity.READY:
            pass
        assert states.get(timeout=30) is grpc.ChannelConnectivity.IDLE
        store.write(0, np.ones((5, 3), np.float32))
        np.testing.assert_array_equal(store.read(0), np.ones((5, 3), np.float32))
        store.close()


def test_a_chief_calls_often_enough_to_stay_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    idle_ms = dict(gate.LIMITS)["grpc.max_connection_idle_ms"]
    assert idle_ms > 2 * gate.STAY_S * 1000
    monkeypatch.setattr(remote, "STAY_S", 0.01)
    called = threading.Semaphore(0)
    method = remote._Link._method

    def seen(link: Any, kind: str, name: str) -> Any:
        if name == "Stay":
            called.release()
        return method(link, kind, name)

    monkeypatch.setattr(remote._Link, "_method", seen)
    with weight_servers(1) as servers:
        store = ServerStore(SPECS[1:], servers)
        assert called.acquire(timeout=30) and called.acquire(timeout=30)
        store.close()
        assert not [thread for thread in threading.enumerate() if thread.name == "weight-server-0-stay"]
