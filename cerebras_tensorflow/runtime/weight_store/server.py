"""The weight server process: it holds weights in memory until it is killed.

csrun starts it with a folder and its index. It handles plain bytes, without shapes, dtypes and TensorFlow. So it starts
fast and leaves the node's memory to the weights. The wire may be packed; the weights here are not. Whoever connects
must prove that it has the secret of the server. Then the server answers its requests (wire.py), one after the other on
each connection:

| request | takes | returns |
|---|---|---|
| OPEN | JSON: index -> bytes of each weight | number of the store, 8 bytes |
| READ | | bytes start to stop; from the snapshot if `is_held` |
| GATHER | int64 row numbers; `start` is the size of a row, `stop` the number of rows | rows |
| WRITE | bytes start to stop | |
| HOLD, RELEASE, END_HOLD, CLOSE | | |
"""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from cerebras_tensorflow.errors import StoreError
from cerebras_tensorflow.runtime.host import entrance, links
from cerebras_tensorflow.runtime.host.announcement import announce, new_token
from cerebras_tensorflow.runtime.host.links import Incoming, LinkEndedError
from cerebras_tensorflow.runtime.host.memory import free_memory_bytes
from cerebras_tensorflow.runtime.host.network import listen_address, target
from cerebras_tensorflow.runtime.weight_store.buffers import Bytes, aligned_buffer
from cerebras_tensorflow.runtime.weight_store.wire import (
    CHIEF,
    HEADER,
    PIECE_BYTES,
    SERVER,
    Kind,
    Request,
    from_parts,
    to_parts,
)
from cerebras_tensorflow.units import format_bytes

_DISCARD_S = 10.0
"""How long the rest of a refused request may take to arrive [s]."""

NUMBER_BYTES = 8
"""Bytes of the number of a store."""

_MOST_OPEN_BYTES = 64 << 20  # JSON of a million weights and more

Answer = tuple[int, Iterable[Bytes]]
"""Size of an answer, and its parts."""

_NOTHING: Answer = (0, ())


def server_file(folder: Path, index: int) -> Path:
    """Return the file in which a weight server writes its address."""
    return folder / f"weight-server-{index}.json"


@dataclass
class Held:
    """One store's share on this server.

    Attributes:
        values: Index of each weight -> its bytes.
        snapshot: Index of each weight in the snapshot -> its bytes.
        lock: Guards replacing an array in `values`.
    """

    values: dict[int, Bytes]
    snapshot: dict[int, Bytes] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


class WeightServer:
    """Answers the requests of the chief, in a thread for each connection.

    Args:
        host: IP address on which it listens.
        token: The secret.

    Attributes:
        port: Where it listens.
    """

    def __init__(self, host: str, token: str) -> None:
        self._secret = token.encode()
        self._stores: dict[int, Held] = {}
        self._numbers = itertools.count(1)
        self._open: set[socket.socket] = set()
        self._answers: dict[Kind, Callable[[Request, Incoming], Answer]] = {
            Kind.OPEN: self._open_store,
            Kind.READ: self._read,
            Kind.GATHER: self._gather,
            Kind.WRITE: self._write,
            Kind.HOLD: self._hold,
            Kind.RELEASE: self._release,
            Kind.END_HOLD: self._end_hold,
            Kind.CLOSE: self._close,
        }
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, 0), family=family)
        self.port = int(listener.getsockname()[1])
        self._entrance = entrance.Entrance(listener, self._serve, "weight-server")

    def close(self) -> None:
        """End all connections and accept no more."""
        self._entrance.close()
        for link in list(self._open):
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)

    def _serve(self, link: socket.socket, proving: AbstractContextManager[float]) -> None:
        """Background thread: answer the requests of one connection until it ends, or until one is refused."""
        self._open.add(link)
        try:
            with proving as end:
                links.tune(link)
                is_known = links.prove(link, self._secret, SERVER, CHIEF, end)
            if is_known:
                links.start_messages(link)
                while self._reply(link):
                    pass
                _discard(link)
        except LinkEndedError:
            pass  # the chief has ended, or closes what it does not need
        finally:
            self._open.discard(link)
            link.close()

    def _reply(self, link: socket.socket) -> bool:
        """Answer a request. Return False if it was refused: some of its bytes may follow."""
        header = links.receive(link, np.empty(HEADER.size, np.uint8), links.wait_on).tobytes()
        return links.send_answer(link, partial(self._answer, link, header)) is not None

    def _answer(self, link: socket.socket, header: bytes) -> Answer:
        request, arriving = Request.from_bytes(header), Incoming(link, links.wait_on)
        if arriving.size and request.kind not in (Kind.OPEN, Kind.GATHER, Kind.WRITE):
            raise StoreError(f"a request of kind {request.kind.name} takes no bytes, and {arriving.size} arrive")
        return self._answers[request.kind](request, arriving)

    def _open_store(self, _request: Request, arriving: Incoming) -> Answer:
        if arriving.size > _MOST_OPEN_BYTES:
            raise StoreError(f"the sizes of the weights take {arriving.size} bytes")
        sizes = _sizes(arriving.read(np.empty(arriving.size, np.uint8)).tobytes())
        needed, free = sum(sizes.values()), free_memory_bytes()
        if needed > free:
            raise StoreError(
                f"it has {format_bytes(free)} of free memory for {format_bytes(needed)} of weights. Use more weight "
                "servers, or set weight_store to file"
            )
        number = next(self._numbers)
        self._stores[number] = Held({index: aligned_buffer(size) for index, size in sizes.items()})
        return NUMBER_BYTES, [np.frombuffer(number.to_bytes(NUMBER_BYTES, "little"), np.uint8)]

    def _read(self, request: Request, _arriving: Incoming) -> Answer:
        held = self._store(request)
        value = _value(held.snapshot if request.is_held else held.values, request)
        return request.stop - request.start, to_parts(value[request.start : request.stop], request.packing)

    def _gather(self, request: Request, arriving: Incoming) -> Answer:
        row_bytes, count = request.start, request.stop
        value = _value(self._store(request).values, request, is_range=False)
        does_fit = row_bytes and value.size % row_bytes == 0 and count * row_bytes <= value.size
        if not does_fit or arriving.size != 8 * count:
            raise StoreError(f"{count} rows of {row_bytes} bytes do not fit the request")
        rows = arriving.read(np.empty(arriving.size, np.uint8)).view(np.int64)
        table = value.reshape(-1, row_bytes)
        if count and (rows.min() < 0 or rows.max() >= len(table)):
            raise StoreError(f"the weight has {len(table)} rows")
        return count * row_bytes, _rows(table, rows)

    def _write(self, request: Request, arriving: Incoming) -> Answer:
        held, start, stop = self._store(request), request.start, request.stop
        with held.lock:
            value = _value(held.values, request)
            if held.snapshot.get(request.index) is value:  # keep the snapshot's array
                value = aligned_buffer(value.size)
                if stop - start < value.size:
                    value[:] = held.values[request.index]
                held.values[request.index] = value
        try:
            from_parts(arriving, value[start:stop], request.packing)
        except (ValueError, IndexError) as error:
            raise StoreError(f"a write of bytes {start} to {stop} is malformed: {error}") from error
        return _NOTHING

    def _hold(self, request: Request, _arriving: Incoming) -> Answer:
        held = self._store(request)
        held.snapshot = dict(held.values)
        return _NOTHING

    def _release(self, request: Request, _arriving: Incoming) -> Answer:
        self._store(request).snapshot.pop(request.index, None)
        return _NOTHING

    def _end_hold(self, request: Request, _arriving: Incoming) -> Answer:
        self._store(request).snapshot = {}
        return _NOTHING

    def _close(self, request: Request, _arriving: Incoming) -> Answer:
        self._stores.pop(request.store, None)
        return _NOTHING

    def _store(self, request: Request) -> Held:
        if request.store not in self._stores:
            raise StoreError(f"there is no store {request.store}")
        return self._stores[request.store]


def _discard(link: socket.socket) -> None:
    """Forget what is left of a refused request: a connection that is closed before would lose the answer to it."""
    end = time.monotonic() + _DISCARD_S
    with links.socket_calls():
        link.shutdown(socket.SHUT_WR)
        link.settimeout(_DISCARD_S)
        while time.monotonic() < end and link.recv(1 << 16):
            pass


def _rows(table: Bytes, rows: np.ndarray) -> Iterator[Bytes]:
    """Yield rows of a weight in parts. Its shape is (rows, bytes of a row)."""
    step = max(1, PIECE_BYTES // table.shape[1])
    for low in range(0, rows.size, step):
        yield table[rows[low : low + step]].reshape(-1)


def _value(values: dict[int, Bytes], request: Request, is_range: bool = True) -> Bytes:
    """Return the bytes of a weight, of which a request asks for a range."""
    if request.index not in values:
        raise StoreError(f"there is no weight {request.index}")
    value = values[request.index]
    if is_range and not request.start <= request.stop <= value.size:
        raise StoreError(f"bytes {request.start} to {request.stop} are not in {value.size}")
    return value


def _sizes(content: bytes) -> dict[int, int]:
    """Return the size of each weight that a store asks for: index -> bytes."""
    try:
        sizes = {int(index): int(size) for index, size in json.loads(content).items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        sizes = {-1: -1}
    if min(sizes.values(), default=0) < 0:
        raise StoreError("expected JSON: index of each weight -> its bytes")
    return sizes


def main(argv: Sequence[str]) -> None:
    """Serve the weights of one launch."""
    folder, index = Path(argv[0]), int(argv[1])
    address, token = listen_address(), new_token()
    server = WeightServer(address, token)
    about = {"target": target(address, server.port), "token": token, "free_bytes": free_memory_bytes()}
    announce(server_file(folder, index), about)
    while True:
        signal.pause()


if __name__ == "__main__":
    main(sys.argv[1:])
