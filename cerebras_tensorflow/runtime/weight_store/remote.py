"""The weight store in other processes' memory: each streamed weight is on one of the launch's weight servers.

As with a file, the chief reads the weights that a step needs, and writes changed weights in the background. server.py
is the other side. Weights with many zeros are packed on the wire (wire.py). Results do not depend on which server holds
a weight, nor on what is packed.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial

import numpy as np
from typing_extensions import override

from cerebras_tensorflow.config import env
from cerebras_tensorflow.errors import StoreError
from cerebras_tensorflow.graph.program import WeightSpec, dtype_from_name
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.runtime.host import entrance, links, stopping
from cerebras_tensorflow.runtime.host.announcement import read_announcement
from cerebras_tensorflow.runtime.host.links import Incoming, LinkEndedError, OwnerFailedError
from cerebras_tensorflow.runtime.host.network import place
from cerebras_tensorflow.runtime.weight_store.buffers import Buffers, Bytes
from cerebras_tensorflow.runtime.weight_store.failures import never_written
from cerebras_tensorflow.runtime.weight_store.interface import WeightStore, as_bytes, row_bytes, shaped
from cerebras_tensorflow.runtime.weight_store.packing import WIDTHS
from cerebras_tensorflow.runtime.weight_store.server import NUMBER_BYTES, server_file
from cerebras_tensorflow.runtime.weight_store.snapshot import Lifetime, StoreSnapshot
from cerebras_tensorflow.runtime.weight_store.traffic import ALWAYS_PACKED_SHARE, Traffic
from cerebras_tensorflow.runtime.weight_store.wire import (
    CHIEF,
    PIECE_BYTES,
    SERVER,
    Kind,
    Packing,
    Request,
    from_parts,
    to_parts,
)
from cerebras_tensorflow.runtime.weight_store.write_queue import MAX_PENDING_BYTES, WriteQueue
from cerebras_tensorflow.runtime.weight_store.written_rows import WrittenRows

REQUEST_FILE = "weight-request"
START_TIMEOUT_S = 120.0
POLL_S = 0.1
MEMORY_SHARE = 0.5
"""weight_store "auto" uses the servers if the weights take at most this share of their free memory."""

SILENCE_LIMIT_S = 60.0
"""How long a server may move no byte of a request before it counts as hanging [s]."""


@dataclass(frozen=True)
class ServerAddress:
    """The address of a weight server.

    Attributes:
        index: Its number among the launch's weight servers.
        target: host:port.
        token: The secret, which both sides prove to have.
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
                link.call(Kind.HOLD)
            written = self._written.complete()

        def pieces(index: int) -> Iterator[Bytes]:
            if index not in written:
                raise never_written(self.specs[index])
            return self._link(index).held_pieces(index, self.specs[index].num_bytes, self._packing(index))

        return StoreSnapshot(pieces, lambda index: self._link(index).call(Kind.RELEASE, index), self._end_snapshot)

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
                link.call(Kind.END_HOLD)
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
    """The connections to one server, and the store's share on it. Each thread takes one that is free."""

    def __init__(self, address: ServerAddress, sizes: dict[int, int], traffic: Traffic) -> None:
        self._traffic = traffic
        self._address = address
        self._is_lost = False
        self._free: list[socket.socket] = []
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        content = np.frombuffer(json.dumps(sizes).encode(), np.uint8)
        with self._asked(Request(Kind.OPEN), content) as answer:
            if answer.size != NUMBER_BYTES:
                raise ValueError(f"the number of the store has {answer.size} bytes")
            self._store = int.from_bytes(answer.read(np.empty(answer.size, np.uint8)).tobytes(), "little")

    def call(self, kind: Kind, index: int = 0, limit_s: float | None = None) -> None:
        """Make a request that takes and returns no bytes."""
        with self._asked(Request(kind, self._store, index), limit_s=limit_s):
            pass

    def read(self, index: int, start: int, stop: int, target: Bytes, packing: Packing) -> None:
        """Read a part of a weight into an array of its size."""
        request = Request(Kind.READ, self._store, index, start, stop, packing=packing)
        with self._traffic.reading(target.size) as transfer, self._asked(request) as answer:
            transfer.note(target.size, from_parts(answer, target, packing, self._traffic))

    def gather(self, index: int, size: int, rows: np.ndarray, target: Bytes) -> None:
        """Read rows of a weight into an array of their size."""
        request = Request(Kind.GATHER, self._store, index, size, rows.size)
        content = rows.astype(np.int64).view(np.uint8)
        with self._traffic.reading(target.size), self._asked(request, content) as answer:
            if answer.size != target.size:
                raise ValueError(f"{answer.size} bytes arrive, {target.size} were expected")
            answer.read(target)

    def held_pieces(self, index: int, size: int, packing: Packing) -> Iterator[Bytes]:
        """Yield the bytes of a weight in the snapshot, in pieces."""
        for start in range(0, size, PIECE_BYTES):
            stop = min(start + PIECE_BYTES, size)
            piece = np.empty(stop - start, np.uint8)
            with self._asked(Request(Kind.READ, self._store, index, start, stop, True, packing)) as answer:
                from_parts(answer, piece, packing)
            yield piece

    def write(self, index: int, start: int, data: Bytes, packing: Packing) -> None:
        """Replace a part of a weight."""
        request = Request(Kind.WRITE, self._store, index, start, start + data.size, packing=packing)
        moved = 0

        def parts() -> Iterator[Bytes]:
            nonlocal moved
            for part in to_parts(data, packing, self._traffic):
                moved += part.size
                yield part

        with self._traffic.writing(data.size) as transfer, self._asked(request, data, parts()):
            transfer.note(data.size, moved)

    def close(self) -> None:
        """Free the share on the server, if the server still lives."""
        try:
            if not self._is_lost:
                self.call(Kind.CLOSE, limit_s=stopping.ANSWER_LIMIT_S)
        except StoreError:
            pass  # the server is gone and the share with it, or it hangs, or the error of the run has been reported
        with self._lock:
            self._free.clear()
            left = list(self._open)
        for link in left:
            with suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
            link.close()

    @contextmanager
    def _asked(
        self,
        request: Request,
        data: Bytes | None = None,
        parts: Iterable[Bytes] | None = None,
        limit_s: float | None = None,
    ) -> Iterator[Incoming]:
        """Make a request and give its answer. After an error the connection is closed: more of the answer may follow.

        Args:
            request: The request.
            data: Bytes that belong to it.
            parts: What stands for them on the wire; by default the bytes themselves.
            limit_s: How long the server may stay silent [s]; None: SILENCE_LIMIT_S.

        Raises:
            StoreError: If the server fails, is lost, or sends malformed bytes.
        """
        link, wait = None, partial(self._wait, limit_s)
        data = np.empty(0, np.uint8) if data is None else data
        try:
            link = self._take()
            links.send_parts(link, request.to_bytes(), data.size, [data] if parts is None else parts, wait)
            yield Incoming(link, wait)
        except BaseException as error:
            if link is not None:
                self._drop(link)
            explained = self._explained(error)
            if explained is None:
                raise
            raise explained from error
        with self._lock:
            self._free.append(link)

    def _explained(self, error: BaseException) -> StoreError | None:
        """Return the error of the store for one of a request; None if it does not come from the server."""
        number = self._address.index
        if isinstance(error, (ValueError, IndexError)):
            return StoreError(f"weight server {number} sent malformed bytes: {error}")
        what = f"weight server {number} at {self._address.target} fails: {error}"
        if isinstance(error, OwnerFailedError):
            return StoreError(what)
        if not isinstance(error, LinkEndedError):
            return None
        self._is_lost = True
        return StoreError(
            f"{what}. The run needs its share of the weights. Start again: the run goes on from the last checkpoint"
        )

    def _wait(self, limit_s: float | None, waited_s: float) -> None:
        """Give a server up that has been silent too long; after a signal to stop, soon."""
        limit_s = SILENCE_LIMIT_S if limit_s is None else limit_s
        limit_s = min(limit_s, stopping.ANSWER_LIMIT_S) if stopping.requested.is_set() else limit_s
        if waited_s >= limit_s:
            raise LinkEndedError(f"no answer for {limit_s:g} s")

    def _take(self) -> socket.socket:
        """Return a connection that no thread uses."""
        with self._lock:
            if self._free:
                return self._free.pop()
        end = time.monotonic() + SILENCE_LIMIT_S

        def go_on(error: LinkEndedError) -> None:
            if stopping.requested.is_set() or time.monotonic() > end:
                raise error

        link = entrance.connect(place(self._address.target), self._prove, go_on)
        with self._lock:
            self._open.add(link)
        return link

    def _prove(self, link: socket.socket, end: float) -> None:
        if not links.prove(link, self._address.token.encode(), CHIEF, SERVER, end):
            raise OwnerFailedError("it does not know the secret of this launch, or this process does not")
        links.start_messages(link)

    def _drop(self, link: socket.socket) -> None:
        with self._lock:
            self._open.discard(link)
        link.close()
