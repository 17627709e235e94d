"""The weight store that is other processes' memory: each streamed weight on one of the launch's weight servers.

The chief reads what the step needs and writes behind what the step has changed, as with a file; see
server.py for the other side. Which server holds a weight does not change a bit of it.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from cerebras_tensorflow.config import env
from cerebras_tensorflow.errors import StoreError
from cerebras_tensorflow.graph.program import WeightSpec, dtype_from_name
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.runtime.weight_store.buffers import Buffers
from cerebras_tensorflow.runtime.weight_store.interface import (
    WeightStore,
    never_written,
    num_rows,
    row_bytes,
    unexpected,
)
from cerebras_tensorflow.runtime.weight_store.server import (
    HEADER,
    PIECE_BYTES,
    SERVICE,
    TOKEN_KEY,
    UNLIMITED,
    Bytes,
    server_file,
)
from cerebras_tensorflow.runtime.weight_store.snapshot import StoreSnapshot

REQUEST_FILE = "weight-request"
START_TIMEOUT_S = 120.0
POLL_S = 0.1
MEMORY_SHARE = 0.5
"""Of the servers' free memory, up to which weight_store "auto" gives them weights."""

# A server whose host is gone is noticed, instead of waited for.
CHANNEL = [*UNLIMITED, ("grpc.keepalive_time_ms", 20_000), ("grpc.keepalive_timeout_ms", 10_000)]


@dataclass(frozen=True)
class ServerAddress:
    """Where a weight server is.

    Attributes:
        index: Its number among the launch's weight servers.
        target: host:port.
        token: What it wants to be shown.
        free_bytes: Memory that its node had free when it started [B].
    """

    index: int
    target: str
    token: str
    free_bytes: int


def start_weight_servers(environment: env.Environment | None = None) -> list[ServerAddress]:
    """Return the launch's weight servers, after asking those that stand by to start; none if it has none.

    Raises:
        StoreError: If they do not start within START_TIMEOUT_S.
    """
    environment = env.read() if environment is None else environment
    count, folder = environment.weight_servers, environment.input_folder
    if count == 0 or folder is None or environment.role != "chief":
        return []
    (folder / REQUEST_FILE).touch()
    deadline = time.monotonic() + START_TIMEOUT_S
    while not all(server_file(folder, index).exists() for index in range(count)):
        if time.monotonic() > deadline:
            raise StoreError(
                f"the {count} weight servers of this launch have not all started within {START_TIMEOUT_S:.0f} s; their "
                f"logs are {folder}/weight-server-*.log. Set weight_store to memory or file to do without them"
            )
        time.sleep(POLL_S)
    return [ServerAddress(index, **_read(server_file(folder, index))) for index in range(count)]


def have_room(servers: Sequence[ServerAddress], num_bytes: int) -> bool:
    """Return whether weights of a size should go to these servers."""
    # Servers of one host share its memory, and each has reported all of it.
    free_bytes: dict[str, int] = {}
    for server in servers:
        host = server.target.rpartition(":")[0]
        free_bytes[host] = max(free_bytes.get(host, 0), server.free_bytes)
    return bool(servers) and num_bytes <= MEMORY_SHARE * sum(free_bytes.values())


def shares(specs: Sequence[WeightSpec], count: int) -> list[int]:
    """Return the server of each weight: the largest first, each to the one that has least so far."""
    load = [0] * count
    owners = [0] * len(specs)
    for index in sorted(range(len(specs)), key=lambda index: -specs[index].num_bytes):
        owners[index] = load.index(min(load))
        load[owners[index]] += specs[index].num_bytes
    return owners


class ServerStore(WeightStore):
    """All weights on weight servers. Reads are answered at once, writes go behind, in order for each server.

    Args:
        specs: The weights.
        servers: The servers.
        max_pending_bytes: Bytes of values on their way before a write has to wait.

    Raises:
        StoreError: If a server does not answer or has no room.
    """

    def __init__(
        self, specs: Sequence[WeightSpec], servers: Sequence[ServerAddress], max_pending_bytes: int = 64_000_000
    ) -> None:
        super().__init__(specs)
        if not servers:
            raise StoreError(
                "weight_store is servers, but this launch has no weight servers: start it with csrun_wse and "
                "--weight-servers 1 or more, or on several nodes --single-task-nodes 2 or more"
            )
        self._shares = shares(specs, len(servers))
        self._links: list[_Link] = []
        with ExitStack() as stack:
            for server in servers:
                sizes = {
                    index: spec.num_bytes for index, spec in enumerate(specs) if self._shares[index] == server.index
                }
                self._links.append(_Link(server, sizes))
                stack.callback(self._links[-1].close)
            stack.pop_all()
        self._buffers = Buffers()
        # Which rows of a weight are there; None: all.
        self._written: list[np.ndarray | None] = [np.zeros(num_rows(spec), np.bool_) for spec in specs]
        self._max_pending_bytes = max_pending_bytes
        self._pending: dict[int, deque[Future[None]]] = {}  # the writes to a weight that have not ended, in order
        self._pending_bytes = 0
        self._failure: StoreError | None = None
        self._changed = threading.Condition()
        self._snapshot: _ServerSnapshot | None = None
        self._is_closed = False
        run_log.info("The weights are held by %d weight server(s).", len(servers))

    def read(self, index: int) -> np.ndarray:
        return self.read_slice(index, 0, num_rows(self.specs[index]))

    def read_private(self, index: int) -> np.ndarray:
        return self.read(index)

    def read_slice(self, index: int, start: int, stop: int) -> np.ndarray:
        spec, size = self.specs[index], row_bytes(self.specs[index])
        self._wait_for(index)
        written = self._written[index]
        if written is not None and not written[start:stop].all():
            raise never_written(spec)
        with self._moving("load", index, (stop - start) * size):
            values = self._buffers.take((stop - start) * size)
            self._link(index).read(index, start * size, stop * size, values)
        shape = (stop - start, *spec.shape[1:]) if spec.shape else ()
        return values.view(dtype_from_name(spec.dtype)).reshape(shape)

    def read_rows(self, index: int, rows: np.ndarray) -> np.ndarray:
        self._check_rows(index, rows)
        self._wait_for(index)
        spec, size = self.specs[index], row_bytes(self.specs[index])
        unique, inverse = np.unique(rows, return_inverse=True)
        written = self._written[index]
        if written is not None and not written[unique].all():
            raise never_written(spec)
        with self._moving("gather", index, unique.size * size):
            values = self._buffers.take(unique.size * size)
            self._link(index).gather(index, size, unique, values)
        table = values.view(dtype_from_name(spec.dtype)).reshape(unique.size, *spec.shape[1:])
        return np.asarray(table[inverse.reshape(rows.shape)])

    def write(self, index: int, value: np.ndarray) -> None:
        self.write_slice(index, 0, value)

    def write_slice(self, index: int, start: int, value: np.ndarray) -> None:
        data = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        first = start * row_bytes(self.specs[index])
        with self._changed:
            self._changed.wait_for(
                lambda: self._pending_bytes == 0 or self._pending_bytes + data.size <= self._max_pending_bytes
            )
            self._raise_failure()
            self._pending_bytes += data.size
            written = self._written[index]
            if written is not None:
                written[start : start + (len(value) if self.specs[index].shape else 1)] = True
                if written.all():
                    self._written[index] = None
            job = self._link(index).writer.submit(self._write_behind, index, first, data)
            self._pending.setdefault(index, deque()).append(job)

    def flush(self) -> None:
        for index in list(self._pending):
            self._wait_for(index)
        self._raise_failure()

    def snapshot(self) -> StoreSnapshot:
        self.flush()
        if self._snapshot is not None:
            raise StoreError("the snapshot before has not been closed")
        for link in self._links:
            link.call("Hold")
        self._snapshot = _ServerSnapshot(self)
        return self._snapshot

    @property
    def snapshot_bytes(self) -> int:
        return 2 * PIECE_BYTES

    def read_held(self, index: int) -> Iterator[Bytes]:
        """Yield a weight's bytes as the snapshot has them."""
        yield from self._link(index).pieces("Read", index, 0, self.specs[index].num_bytes, is_held=True)

    def release(self, index: int) -> None:
        """End the snapshot's hold on a weight."""
        self._link(index).call("Release", index)

    def end_snapshot(self) -> None:
        """End the snapshot's hold on all weights; a store that was closed meanwhile goes now."""
        for link in self._links:
            link.call("EndHold")
        with self._changed:
            self._snapshot = None
            if self._is_closed:
                self._close_links()

    def close(self) -> None:
        for link in self._links:
            link.writer.shutdown(wait=True)
        with self._changed:
            if not self._is_closed:
                self._is_closed = True
                if self._snapshot is None:
                    self._close_links()

    def _close_links(self) -> None:
        for link in self._links:
            link.close()
        self._buffers.close()

    def _link(self, index: int) -> _Link:
        return self._links[self._shares[index]]

    def _write_behind(self, index: int, first: int, data: Bytes) -> None:
        try:
            if self._failure is None:
                with self._moving("store", index, data.size):
                    self._link(index).write(index, first, data)
        except StoreError as error:
            self._failure = self._failure or error
        except BaseException as error:  # nobody asks for a result of this thread: the next use of the store tells
            self._failure = self._failure or unexpected(self.specs[index], error)
        finally:
            with self._changed:
                self._pending[index].popleft()
                self._pending_bytes -= data.size
                self._changed.notify_all()

    def _wait_for(self, index: int) -> None:
        """Wait for all writes so far to a weight."""
        with self._changed:
            jobs = list(self._pending.get(index, ()))
        for job in jobs:
            job.result()
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


class _ServerSnapshot(StoreSnapshot):
    """What the servers hold back."""

    def __init__(self, store: ServerStore) -> None:
        self._store = store
        self._is_closed = False

    def pieces(self, index: int) -> Iterator[np.ndarray]:
        return self._store.read_held(index)

    def release(self, index: int) -> None:
        self._store.release(index)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._store.end_snapshot()


class _Link:
    """One server, and the share of one store on it."""

    def __init__(self, address: ServerAddress, sizes: dict[int, int]) -> None:
        self._address = address
        self._channel = grpc.insecure_channel(address.target, options=CHANNEL)
        self._metadata = ((TOKEN_KEY, address.token),)
        self.writer = ThreadPoolExecutor(1, thread_name_prefix=f"weight-server-{address.index}")
        request = json.dumps(sizes).encode()
        with self._errors():
            self._store = int(self._method("unary_unary", "Open")(request, metadata=self._metadata))

    def call(self, name: str, index: int = 0) -> None:
        """Make a call that only has a header."""
        with self._errors():
            self._method("unary_unary", name)(self._header(index), metadata=self._metadata)

    def read(self, index: int, start: int, stop: int, target: Bytes) -> None:
        """Read a part of a weight into an array of its size."""
        self._fill(target, self.pieces("Read", index, start, stop))

    def gather(self, index: int, size: int, rows: np.ndarray, target: Bytes) -> None:
        """Read rows of a weight into an array of their size."""
        self._fill(target, self.pieces("Gather", index, size, rows.size, rows.astype(np.int64).tobytes()))

    def pieces(
        self, name: str, index: int, start: int, stop: int, rest: bytes = b"", is_held: bool = False
    ) -> Iterator[Bytes]:
        """Yield what a call answers."""
        request = self._header(index, start, stop, is_held) + rest
        with self._errors():
            for piece in self._method("unary_stream", name)(request, metadata=self._metadata):
                yield np.frombuffer(piece, np.uint8)

    def write(self, index: int, start: int, data: Bytes) -> None:
        """Replace a part of a weight."""

        def messages() -> Iterator[bytes]:
            yield self._header(index, start, start + data.size)
            for low in range(0, data.size, PIECE_BYTES):
                yield data[low : low + PIECE_BYTES].tobytes()

        with self._errors():
            self._method("stream_unary", "Write")(messages(), metadata=self._metadata)

    def close(self) -> None:
        """Let the server forget the share, if it is still there."""
        try:
            self.call("Close")
        except StoreError:
            pass  # it has forgotten everything
        finally:
            self.writer.shutdown(wait=True)
            self._channel.close()

    def _fill(self, target: Bytes, pieces: Iterator[Bytes]) -> None:
        position = 0
        for piece in pieces:
            target[position : position + piece.size] = piece
            position += piece.size
        if position != target.size:
            raise StoreError(f"weight server {self._address.index} sent {position} bytes of {target.size}")

    def _header(self, index: int, start: int = 0, stop: int = 0, is_held: bool = False) -> bytes:
        return HEADER.pack(self._store, index, start, stop, is_held)

    def _method(self, kind: str, name: str) -> Any:
        return getattr(self._channel, kind)(f"/{SERVICE}/{name}")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except grpc.RpcError as exc:
            raise StoreError(
                f"weight server {self._address.index} at {self._address.target} fails: {exc.details()}. Without its "
                "share of the weights the run cannot go on; start again, and it goes on from the last checkpoint"
            ) from exc


def _read(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return values
