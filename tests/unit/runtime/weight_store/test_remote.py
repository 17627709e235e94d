"""Weights on weight servers: tests of this store only. test_stores.py tests what all stores share."""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cerebras_tensorflow.config import env
from cerebras_tensorflow.errors import StoreError
from cerebras_tensorflow.graph.program import WeightSpec, dtype_from_name
from cerebras_tensorflow.runtime.host import links, stopping
from cerebras_tensorflow.runtime.host.links import Incoming, LinkEndedError, OwnerFailedError
from cerebras_tensorflow.runtime.host.network import place
from cerebras_tensorflow.runtime.weight_store import remote
from cerebras_tensorflow.runtime.weight_store import server as weight_server_process
from cerebras_tensorflow.runtime.weight_store.remote import (
    ServerAddress,
    ServerStore,
    have_room,
    shares,
    start_weight_servers,
)
from cerebras_tensorflow.runtime.weight_store.server import WeightServer
from cerebras_tensorflow.runtime.weight_store.wire import CHIEF, HEADER, PIECE_BYTES, SERVER, Kind, Packing, Request

TOKEN = "token"
ROWS = 3 * PIECE_BYTES // 4096 + 1  # a weight of several pieces and a bit
SPECS = (WeightSpec("large", "float32", (ROWS, 1024), ROWS * 4096), WeightSpec("small", "float32", (5, 3), 60))


@contextmanager
def weight_servers(count: int, token: str = TOKEN) -> Iterator[list[ServerAddress]]:
    """Yield the addresses of servers that run in this process."""
    servers = [WeightServer("127.0.0.1", TOKEN) for _ in range(count)]
    yield [ServerAddress(number, f"127.0.0.1:{one.port}", token, 1 << 30) for number, one in enumerate(servers)]
    for server in servers:
        server.close()


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


@pytest.mark.parametrize(("size", "num_bytes"), [(8, 8), (16, 10), (PIECE_BYTES + 8, PIECE_BYTES // 8 + 16)])
def test_a_mask_moves_as_bits_where_that_makes_it_smaller(size: int, num_bytes: int) -> None:
    value = np.ones(size, np.bool_)
    with weight_servers(1) as servers:
        store = ServerStore([WeightSpec("mask", "bool", (size,), size)], servers)
        store.write(0, value)
        np.testing.assert_array_equal(store.read(0), value)
        assert store.wire_bytes == (num_bytes, num_bytes)
        store.close()


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


def test_the_error_of_a_dead_server_names_it() -> None:
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


def test_a_server_that_refuses_a_request_says_why_and_still_frees_the_share() -> None:
    with weight_servers(1) as servers:
        store = ServerStore([SPECS[1]], servers)
        with pytest.raises(StoreError, match=r"weight server 0 at .* fails: there is no weight 7"):
            list(store._links[0].held_pieces(7, 4, Packing()))
        large = np.zeros(32 << 20, np.uint8)  # does not fit into the buffers of the connection
        with pytest.raises(StoreError, match="there is no weight 7"):
            store._links[0].write(7, 0, large, Packing())
        store.close()
        with connected(servers[0]) as link:
            assert "no store" in refusal(link, Request(Kind.HOLD, 1).to_bytes())


@contextmanager
def server_process(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], list[ServerAddress]]]:
    """Yield a server of its own process, and its address."""
    words = [sys.executable, "-m", weight_server_process.__name__, str(folder), "0"]
    with subprocess.Popen(words) as process, ExitStack() as cleanup:
        cleanup.callback(process.kill)
        announced = {env.ROLE: "chief", env.WEIGHT_SERVERS: "1", env.INPUT_FOLDER: str(folder)}
        yield process, start_weight_servers(env.read(announced))


def stop(process: subprocess.Popen[bytes]) -> None:
    """Stop a process, and wait until all its threads have stopped."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)


def test_after_a_signal_to_stop_a_server_that_hangs_is_given_up_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server_process(tmp_path) as (process, servers):
        monkeypatch.setattr(stopping, "ANSWER_LIMIT_S", 0.5)
        monkeypatch.setattr(remote, "SILENCE_LIMIT_S", math.inf)
        store = ServerStore(SPECS, servers)
        store.write(1, np.ones((5, 3), np.float32))
        store.flush()
        stop(process)
        monkeypatch.setattr(stopping.requested, "is_set", lambda: True)
        with pytest.raises(StoreError, match=r"fails: no answer for 0\.5 s.*goes on from the last checkpoint"):
            store.read(1)
        store.close()


def test_a_server_that_hangs_is_given_up_and_close_waits_for_it_no_longer_than_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server_process(tmp_path) as (process, servers):
        stores = [ServerStore(SPECS, servers) for _ in range(2)]
        stores[0].write(1, np.ones((5, 3), np.float32))
        stores[0].flush()
        stop(process)
        monkeypatch.setattr(remote, "SILENCE_LIMIT_S", 1.0)
        with pytest.raises(StoreError, match=r"fails: no answer for 1 s.*goes on from the last checkpoint"):
            stores[0].read(1)
        monkeypatch.setattr(remote, "SILENCE_LIMIT_S", math.inf)  # the second store does not know yet
        monkeypatch.setattr(stopping, "ANSWER_LIMIT_S", 0.5)
        for store in stores:
            store.close()


@pytest.mark.parametrize("parts", [[15], [61], [20, 61], [30, 0], [30, 29, 1]])
def test_malformed_pieces_of_a_weight_are_an_error_of_the_store(
    parts: list[int], store: ServerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = store.snapshot()
    sent = [np.zeros(size, np.uint8) for size in parts]

    def send(link: socket.socket, first: bytes, size: int, _parts: Any, check: Any) -> None:
        contents = [links.ANSWER.pack(False, size)]
        for part in sent:
            contents += [links.ANSWER.pack(False, part.size), part.tobytes()]
        links.send_joined(link, [first, *contents], check)

    proper = links.send_parts
    own = threading.current_thread()
    is_own = lambda: threading.current_thread() is own  # noqa: E731 - the server runs in this process
    monkeypatch.setattr(links, "send_parts", lambda *given: (proper if is_own() else send)(*given))
    with pytest.raises(StoreError, match=r"weight server \d sent malformed bytes"):
        list(snapshot.pieces(1))
    monkeypatch.setattr(links, "send_parts", proper)
    snapshot.close()


def test_another_token_is_refused() -> None:
    with weight_servers(1, token="wrong") as servers, pytest.raises(StoreError, match=r"this process does not$"):
        ServerStore(SPECS, servers)


def test_an_error_that_is_none_of_a_server_stays_as_it_is(store: ServerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(remote, "from_parts", interrupt)
    with pytest.raises(KeyboardInterrupt) as raised:
        store.read(1)
    assert raised.value.__cause__ is None


def test_sizes_that_no_side_sends_are_refused_before_memory_is_taken() -> None:
    with weight_servers(1) as servers:
        with connected(servers[0]) as link:
            assert "the sizes of the weights take" in refusal(link, header(Kind.OPEN), size=1 << 40)
        with connected(servers[0]) as link:
            links.send(link, header(Kind.OPEN) + links.ANSWER.pack(True, 1 << 40))
            assert link.recv(1) == b""


def test_a_server_without_enough_memory_is_an_error() -> None:
    huge = [WeightSpec("huge", "uint8", (1 << 50,), 1 << 50)]
    with weight_servers(1) as servers:
        with pytest.raises(StoreError, match=r"has .*B of free memory for 1125.9 TB .*set weight_store to file$"):
            ServerStore(huge, servers)  # starting again would not help
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


HUGE = 2**64 - 1
ROW_5, ROW_MINUS_1 = np.int64(5).tobytes(), np.int64(-1).tobytes()


@contextmanager
def connected(server: ServerAddress) -> Iterator[socket.socket]:
    """Yield a connection whose sides have proven that they have the secret."""
    with socket.create_connection(place(server.target)) as link:
        assert links.prove(link, server.token.encode(), CHIEF, SERVER, time.monotonic() + 60)
        link.settimeout(60)
        yield link


def refusal(link: socket.socket, header: bytes, *parts: bytes, size: int | None = None) -> str:
    """Send a request, and return the error that answers it."""
    arrays = [np.frombuffer(part, np.uint8) for part in parts]
    links.send_parts(link, header, sum(map(len, parts)) if size is None else size, arrays, None)
    with pytest.raises(OwnerFailedError) as raised:
        Incoming(link, lambda waited_s: pytest.fail(f"no answer for {waited_s} s"))
    return str(raised.value)


def header(kind: Kind, *place: int, width: int = 0, share: float = 0.0) -> bytes:
    """A request to store 1, weight 1; `place` is start, stop, is_held, index and store."""
    start, stop, is_held, index, store = (*place, *(0, 0, 0, 1, 1)[len(place) :])
    return HEADER.pack(kind, store, index, start, stop, is_held, width, share)


@pytest.mark.parametrize(
    ("sent", "parts", "why"),
    [
        (header(Kind.HOLD, 0, 0, 0, 0, 9), [], "no store 9"),
        (header(Kind.END_HOLD, 0, 0, 0, 0, HUGE), [], "no store"),
        (header(Kind.RELEASE, 0, 0, 0, 0, 9), [], "no store 9"),
        (header(Kind.CLOSE), [b"x"], "CLOSE takes no bytes"),
        (HEADER.pack(0, 1, 1, 0, 8, 0, 0, 0.0), [], "0 is not a valid Kind"),
        (header(Kind.OPEN), [], "expected JSON"),
        (header(Kind.OPEN), [b"[]"], "expected JSON"),
        (header(Kind.OPEN), [b'{"a": 1}'], "expected JSON"),
        (header(Kind.OPEN), [b'{"0": -1}'], "expected JSON"),
        (header(Kind.OPEN), [b"[" * 100_000], "expected JSON"),
        (header(Kind.READ, 0, 8, 0, 0, 9), [], "no store 9"),
        (header(Kind.READ, 0, 8, 0, 7), [], "no weight 7"),
        (header(Kind.READ, 0, HUGE), [], "are not in 60"),
        (header(Kind.READ, 8, 0), [], "are not in 60"),
        (header(Kind.READ, 0, 8, 1), [], "no weight 1"),
        (header(Kind.READ, 0, 8), [b"x"], "READ takes no bytes"),
        (header(Kind.READ, 0, 8, width=3, share=0.5), [], "elements of 3 bytes"),
        (header(Kind.READ, 0, 8, width=4, share=math.nan), [], "a share of nan"),
        (header(Kind.GATHER, 1, 1), [], "do not fit"),
        (header(Kind.GATHER, 12, HUGE), [], "do not fit"),
        (header(Kind.GATHER, 12, 1), [ROW_5], "has 5 rows"),
        (header(Kind.GATHER, 12, 1), [ROW_MINUS_1], "has 5 rows"),
        (header(Kind.GATHER, 7, 1), [bytes(8)], "do not fit"),
        (header(Kind.GATHER, 12, 6), [bytes(48)], "do not fit"),
        (header(Kind.WRITE, 0, HUGE), [], "are not in 60"),
        (header(Kind.WRITE, 0, 4), [bytes(8)], "malformed"),
        (header(Kind.WRITE, 56, 64), [bytes(8)], "are not in 60"),
        (header(Kind.WRITE, 0, 8), [bytes(4)], "malformed"),
        (header(Kind.WRITE, 0, 40, width=4, share=0.5), [b"\xff" * 20], "malformed"),
        (header(Kind.WRITE, 0, 32, width=4, share=0.5), [b"\x02" + bytes(11)], "malformed"),
    ],
)
def test_a_malformed_request_is_refused(sent: bytes, parts: list[bytes], why: str) -> None:
    with weight_servers(1) as servers, connected(servers[0]) as link:
        store = ServerStore([SPECS[1], SPECS[1]], servers)
        store.write(1, np.ones((5, 3), np.float32))
        store.flush()
        # Packed parts stand for the bytes of the request.
        size = HEADER.unpack(sent)[4] - HEADER.unpack(sent)[3] if len(parts) == 1 and HEADER.unpack(sent)[6] else None
        assert why in refusal(link, sent, *parts, size=size)
        np.testing.assert_array_equal(store.read(1), np.ones((5, 3)))
        store.close()


def test_a_caller_without_the_secret_gets_nothing() -> None:
    with weight_servers(1) as servers:
        with socket.create_connection(place(servers[0].target)) as link:
            link.settimeout(60)
            link.sendall(bytes(64))
            assert len(link.makefile("rb").read()) == 64  # a random number and the server's own proof
        with socket.create_connection(place(servers[0].target)) as link, suppress(LinkEndedError):
            assert not links.prove(link, b"other", CHIEF, SERVER, time.monotonic() + 60)
            assert link.recv(1) == b""


def test_threads_use_one_server_at_the_same_time() -> None:
    value = np.arange(ROWS * 1024, dtype=np.float32).reshape(ROWS, 1024)
    with weight_servers(1) as servers, ThreadPoolExecutor(8) as threads:
        store = ServerStore(SPECS, servers)
        store.write(0, value)
        for row, read in enumerate(threads.map(lambda row: store.read_slice(0, row, row + 1000), range(40))):
            np.testing.assert_array_equal(read, value[row : row + 1000])
        store.close()
