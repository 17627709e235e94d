"""The weight store in other processes' memory: each streamed weight is on one of the launch's weight servers.

As with a file, the chief reads the weights that a step needs, and writes changed weights in the background. server.py
is the other side. Weights with many zeros are packed on the wire (wire.py). Results do not depend on which server holds
a weight, nor on what is packed.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
from typing_extensions import override

from cerebras_tensorflow.config import env
from cerebras_tensorflow.errors import StoreError
from cerebras_tensorflow.graph.program import WeightSpec, dtype_from_name
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.runtime.host import stopping
from cerebras_tensorflow.runtime.host.announcement import read_announcement
from cerebras_tensorflow.runtime.host.gate import STAY_S, UNLIMITED
from cerebras_tensorflow.runtime.weight_store.buffers import Buffers, Bytes
from cerebras_tensorflow.runtime.weight_store.failures import never_written
from cerebras_tensorflow.runtime.weight_store.interface import WeightStore, as_bytes, row_bytes, shaped
from cerebras_tensorflow.runtime.weight_store.packing import WIDTHS
from cerebras_tensorflow.runtime.weight_store.server import (
    HEADER,
    SERVICE,
    TOKEN_KEY,
    server_file,
)
from cerebras_tensorflow.runtime.weight_store.snapshot import Lifetime, StoreSnapshot
from cerebras_tensorflow.runtime.weight_store.traffic import ALWAYS_PACKED_SHARE, Traffic
from cerebras_tensorflow.runtime.weight_store.wire import (
    PIECE_BYTES,
    Packing,
    from_messages,
    to_messages,
    unpack_message,
)
from cerebras_tensorflow.runtime.weight_store.write_queue import MAX_PENDING_BYTES, WriteQueue
from cerebras_tensorflow.runtime.weight_store.written_rows import WrittenRows

REQUEST_FILE = "weight-request"
START_TIMEOUT_S = 120.0
POLL_S = 0.1
MEMORY_SHARE = 0.5
"""weight_store "auto" uses the servers if the weights take at most this share of their free memory."""

# Detect a server that hangs or whose host is gone.
CHANNEL = [
    *UNLIMITED,
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 20_000),  # gRPC's minute would delay the detection
]

_LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.DEADLINE_EXCEEDED)


@dataclass(frozen=True)
class ServerAddress:
    """The address of a weight server.

    Attributes:
        index: Its number among the launch's weight servers.
        target: host:port.
        token: The secret that each call must send.
        free_bytes: Free memory of its node when it started [B].
    """

    index: int
    target: str
    token: str
    free_bytes: int


def start_weight_servers(environment: env.Environment | None = None) -> list[ServerAddress]:
    """Start the launch's weight servers. Return their addresses, or an empty list if it has none.

    Raises:
        StoreError: If they do not start within START_TIMEOUT_S.
    """
    environment = env.read() if environment is None else environment
    count, folder = environment.weight_servers, environment.input_folder
    if count == 0 or folder is None or environment.role != "chief":
        return []
    (folder / REQUEST_FILE).touch()
    deadline = time.monotonic() + START_TIMEOUT_S
    while None in (announced := [read_announcement(server_file(folder, index)) for index in range(count)]):
        if time.monotonic() > deadline:
            raise StoreError(
                f"the {count} weight servers of this launch have not all started within {START_TIMEOUT_S:.0f} s; their "
                f"logs are {folder}/weight-server-*.log. Set weight_store to memory or file to run without them"
            )
        time.sleep(POLL_S)
    return [ServerAddress(index, **about) for index, about in enumerate(announced) if about is not None]


def have_room(servers: Sequence[ServerAddress], num_bytes: int) -> bool:
    """Return whether weights of a size should go to these servers."""
    # Servers on one host share its memory, and each reports all of it.
    free_bytes: dict[str, int] = {}
    for server in servers:
        host = server.target.rpartition(":")[0]
        free_bytes[host] = max(free_bytes.get(host, 0), server.free_bytes)
    return bool(servers) and num_bytes <= MEMORY_SHARE * sum(free_bytes.values())


def shares(specs: Sequence[WeightSpec], count: int) -> list[int]:
    """Return the server of each weight. Each goes to the server with the fewest bytes so far, the largest first."""
    load = [0] * count
    owners = [0] * len(specs)
    for index in sorted(range(len(specs)), key=lambda index: -specs[index].num_bytes):
        owners[index] = load.index(min(load))
        load[owners[index]] += specs[index].num_bytes
    return owners


class ServerStore(WeightStore):
    """All weights on weight servers. Reads are synchronous; writes run in the background, in order for each server.

    Args:
        specs: The weights.
        servers: The servers.
        max_pending_bytes: Queued bytes beyond which a write waits.

    Raises:
        StoreError: If a server does not answer or has no room.
    """

    def __init__(
        self, specs: Sequence[WeightSpec], servers: Sequence[ServerAddress], max_pending_bytes: int = MAX_PENDING_BYTES
    ) -> None:
        super().__init__(specs)
        if not servers:
            raise StoreError(
                "weight_store is servers, but this launch has no weight servers: start it with csrun_wse and "
                "--weight-servers 1 or more, or on several nodes --single-task-nodes 2 or more"
            )
        self._shares = shares(specs, len(servers))
        self._traffic = Traffic(ALWAYS_PACKED_SHARE)  # a loopback is too fast to pack more
        self._links: list[_Link] = []
        with ExitStack() as stack:
            for server in servers:
                sizes = {
                    index: spec.num_bytes for index, spec in enumerate(specs) if self._shares[index] == server.index
                }
                self._links.append(_Link(server, sizes, self._traffic))
                stack.callback(self._links[-1].close)
            stack.pop_all()
        self._buffers = Buffers()
        self._written = WrittenRows(specs)
        self._lifetime = Lifetime(self._free)
        self._writes = WriteQueue(
            specs, self._write_now, self._shares, len(servers), max_pending_bytes, self._failure, "weight-servers-write"
        )
        run_log.info("The weights are held by %d weight server(s).", len(servers))

    @property
    def wire_bytes(self) -> tuple[int, int]:
        """Bytes read from and written to the servers so far. Zeros of sparse weights are not moved."""
        return self._traffic.bytes_read, self._traffic.bytes_written

    @override
    def read_slice(self, index: int, start: int, stop: int) -> np.ndarray:
        spec, size = self.specs[index], row_bytes(self.specs[index])
        self._wait_for(index)
        self._written.check(index, slice(start, stop))
        with self.moving("load", index, (stop - start) * size):
            values = self._buffers.take((stop - start) * size)
            self._link(index).read(index, start * size, stop * size, values, self._packing(index))
        return shaped(values, spec, stop - start)

    @override
    def read_rows(self, index: int, rows: np.ndarray) -> np.ndarray:
        self._check_rows(index, rows)
        self._wait_for(index)
        spec, size = self.specs[index], row_bytes(self.specs[index])
        unique, inverse = np.unique(rows, return_inverse=True)
        self._written.check(index, unique)
        with self.moving("gather", index, unique.size * size):
            values = self._buffers.take(unique.size * size)
            if values.size:
                self._link(index).gather(index, size, unique, values)
        return np.asarray(shaped(values, spec, unique.size)[inverse.reshape(rows.shape)])

    @override
    def write_slice(self, index: int, start: int, value: np.ndarray) -> None:
        self._writes.put(index, start * row_bytes(self.specs[index]), as_bytes(np.ascontiguousarray(value)))
        self._written.note(index, start, start + (len(value) if self.specs[index].shape else 1))

    @override
    def flush(self) -> None:
        self._writes.wait_for_all()
        self._failure.check()

    @override
    def snapshot(self) -> StoreSnapshot:
        self.flush()
        with self._lifetime.new_snapshot():
            for link in self._links:
                link.call("Hold")
            written = self._written.complete()

        def pieces(index: int) -> Iterator[Bytes]:
            if index not in written:
                raise never_written(self.specs[index])
            return self._link(index).held_pieces(index, self.specs[index].num_bytes, self._packing(index))

        return StoreSnapshot(pieces, lambda index: self._link(index).call("Release", index), self._end_snapshot)

    @property
    @override
    def snapshot_bytes(self) -> int:
        return 2 * PIECE_BYTES

    @override
    def close(self) -> None:
        self._writes.close()
        self._lifetime.close()

    def _end_snapshot(self) -> None:
        try:
            for link in self._links:
                link.call("EndHold")
        finally:
            self._lifetime.end_snapshot()

    def _free(self) -> None:
        for link in self._links:
            link.close()
        self._buffers.close()

    def _link(self, index: int) -> _Link:
        return self._links[self._shares[index]]

    def _write_now(self, index: int, first: int, data: Bytes) -> None:
        with self.moving("store", index, data.size):
            self._link(index).write(index, first, data, self._packing(index))

    def _packing(self, index: int) -> Packing:
        width = dtype_from_name(self.specs[index].dtype).itemsize
        return Packing(width, self._traffic.most_packed_share) if width in WIDTHS else Packing()

    def _wait_for(self, index: int) -> None:
        """Wait for all writes so far to a weight."""
        self._writes.wait_for(index, 0, self.specs[index].num_bytes)
        self._failure.check()


class _Link:
    """A connection to one server and to the store's share on it."""

    def __init__(self, address: ServerAddress, sizes: dict[int, int], traffic: Traffic) -> None:
        self._traffic = traffic
        self._address = address
        self._channel = grpc.insecure_channel(address.target, options=CHANNEL)
        self._metadata = ((TOKEN_KEY, address.token),)
        self._is_lost = False
        self._silence = ""  # why it counts as lost, if it did not answer after a signal to stop
        self._num_moved = 0  # pieces; several threads count, and only a change matters
        request = json.dumps(sizes).encode()
        with self._errors():
            self._store = int(self._method("unary_unary", "Open")(request, metadata=self._metadata))
        self._ended = threading.Event()
        self._staying = threading.Thread(target=self._stay, name=f"weight-server-{address.index}-stay", daemon=True)
        self._staying.start()

    def call(self, name: str, index: int = 0, timeout_s: float | None = None) -> None:
        """Make a call that takes only a header."""
        with self._errors():
            self._method("unary_unary", name)(self._header(index), metadata=self._metadata, timeout=timeout_s)

    def read(self, index: int, start: int, stop: int, target: Bytes, packing: Packing) -> None:
        """Read a part of a weight into an array of its size."""
        self._fill(target, "Read", self._header(index, start, stop) + packing.to_bytes(), packing)

    def gather(self, index: int, size: int, rows: np.ndarray, target: Bytes) -> None:
        """Read rows of a weight into an array of their size."""
        request = self._header(index, size, rows.size) + rows.astype(np.int64).tobytes()
        position = 0
        with self._traffic.reading(target.size):
            for message in self._messages("Gather", request):
                piece = np.frombuffer(message, np.uint8)
                target[position : position + piece.size] = piece
                position += piece.size
        self._check_size(position, target)

    def held_pieces(self, index: int, size: int, packing: Packing) -> Iterator[Bytes]:
        """Yield the bytes of a weight in the snapshot, in pieces."""
        request = self._header(index, 0, size, is_held=True) + packing.to_bytes()
        with self._well_formed():
            for start, message in zip(range(0, size, PIECE_BYTES), self._messages("Read", request), strict=True):
                piece = np.frombuffer(message, np.uint8)
                expected = min(PIECE_BYTES, size - start)
                if piece.size != expected:
                    piece = np.empty(expected, np.uint8)
                    unpack_message(message, piece, packing)
                yield piece

    def write(self, index: int, start: int, data: Bytes, packing: Packing) -> None:
        """Replace a part of a weight."""
        moved = 0

        def messages() -> Iterator[bytes]:
            nonlocal moved
            yield self._header(index, start, start + data.size) + packing.to_bytes()
            for message in to_messages(data, packing, self._traffic):
                self._num_moved += 1
                moved += len(message)
                yield message

        with self._errors(), self._traffic.writing(data.size) as transfer:
            self._method("stream_unary", "Write")(messages(), metadata=self._metadata)
            transfer.note(data.size, moved)

    def close(self) -> None:
        """Free the share on the server, if the server still lives."""
        self._ended.set()
        try:
            if not self._is_lost:
                self.call("Close", timeout_s=stopping.ANSWER_LIMIT_S)  # `_stay` ends no call any more
        except StoreError:
            pass  # the server is gone and the share with it, or it hangs, or the error of the run has been reported
        finally:
            self._channel.close()
            self._staying.join()

    def _stay(self) -> None:
        """Background thread: keep the server from closing the connection during a long step.

        It also ends calls that would never return: if gRPC loses the connection while a call begins, the call may wait
        for ever. After a signal to stop, it calls at once and does not wait long. If the server hangs, it ends all
        calls.
        """
        called_at = time.monotonic()
        was_gone = False
        while not self._ended.wait(stopping.POLL_S):
            is_stopping = stopping.requested.is_set()
            if not is_stopping and time.monotonic() - called_at < STAY_S:
                continue
            called_at, moved_before = time.monotonic(), self._num_moved
            try:
                timeout_s = stopping.ANSWER_LIMIT_S if is_stopping else None
                self._method("unary_unary", "Stay")(b"", metadata=self._metadata, timeout=timeout_s)
                was_gone = False
            except grpc.RpcError as error:
                is_silent = is_stopping and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
                is_gone = error.code() is grpc.StatusCode.UNAVAILABLE
                # If bytes have moved, the server lives: its threads are busy with other calls.
                if self._num_moved == moved_before and (is_silent or (is_gone and was_gone)):
                    details = error.details() or "no answer"
                    self._silence = f"no answer for {timeout_s:g} s" if is_silent else details
                    self._channel.close()
                    return
                was_gone = is_gone
            except ValueError:  # `close` has closed the channel
                return

    def _fill(self, target: Bytes, name: str, request: bytes, packing: Packing) -> None:
        """Write what a call returns into an array of its size."""
        with self._traffic.reading(target.size) as transfer:
            with self._well_formed():
                size, moved = from_messages(self._messages(name, request), target, packing, self._traffic)
            transfer.note(size, moved)
        self._check_size(size, target)

    def _messages(self, name: str, request: bytes) -> Iterator[bytes]:
        """Yield what a call returns."""
        with self._errors():
            for message in self._method("unary_stream", name)(request, metadata=self._metadata):
                self._num_moved += 1
                yield message

    def _check_size(self, size: int, target: Bytes) -> None:
        if size != target.size:
            raise StoreError(f"weight server {self._address.index} sent {size} bytes of {target.size}")

    def _header(self, index: int, start: int = 0, stop: int = 0, is_held: bool = False) -> bytes:
        return HEADER.pack(self._store, index, start, stop, is_held)

    def _method(self, kind: str, name: str) -> Any:
        return getattr(self._channel, kind)(f"/{SERVICE}/{name}")

    @contextmanager
    def _well_formed(self) -> Iterator[None]:
        try:
            yield
        except (ValueError, IndexError) as exc:
            raise StoreError(f"weight server {self._address.index} sent malformed bytes: {exc}") from exc

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (grpc.RpcError, ValueError) as exc:
            if isinstance(exc, ValueError) and not self._silence:
                raise
            self._is_lost = bool(self._silence) or exc.code() in _LOST  # type: ignore[union-attr]
            details = self._silence or exc.details()  # type: ignore[union-attr]
            raise StoreError(
                f"weight server {self._address.index} at {self._address.target} fails: {details}. The run needs "
                "its share of the weights. Start again: the run goes on from the last checkpoint"
            ) from exc
