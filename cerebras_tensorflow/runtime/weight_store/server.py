"""The weight server process: it holds weights in memory until it is killed.

csrun starts it with a folder and its index. It handles plain bytes, without shapes, dtypes and TensorFlow. So it starts
fast and leaves the node's memory to the weights. The wire may be packed; the weights here are not. The calls, over
gRPC with raw bytes:

| call | takes | returns |
|---|---|---|
| Open | JSON: index -> bytes of each weight | number of the store |
| Read | HEADER, Packing | bytes start to stop, in pieces (wire.py); from the snapshot if `is_held` |
| Gather | HEADER (`start` is the size of a row, `stop` the number of rows), int64 row numbers | rows, in pieces |
| Write | HEADER and Packing, then pieces | |
| Hold, Release, EndHold, Close | HEADER | |
| Stay | | |

Stay does nothing: it keeps a connection that has no other calls from being closed as idle.
"""

from __future__ import annotations

import itertools
import json
import struct
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from cerebras_tensorflow.runtime.host.announcement import announce, new_token
from cerebras_tensorflow.runtime.host.gate import LIMITS, UNLIMITED, TokenGate
from cerebras_tensorflow.runtime.host.memory import free_memory_bytes
from cerebras_tensorflow.runtime.host.network import listen_address, target
from cerebras_tensorflow.runtime.weight_store.buffers import Bytes, aligned_buffer
from cerebras_tensorflow.runtime.weight_store.wire import PIECE_BYTES, Packing, from_messages, to_messages

SERVICE = "cerebras_tensorflow.WeightServer"
HEADER = struct.Struct("<QQQQQ")
"""Number of the store, index of the weight, start, stop, is_held."""

TOKEN_KEY = "weight-token"
THREADS = 16


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
    """Handles the calls of the chief."""

    def __init__(self) -> None:
        self._stores: dict[int, Held] = {}
        self._numbers = itertools.count(1)

    def open(self, request: bytes, context: Any) -> bytes:
        """Allocate a store and return its number."""
        sizes = _sizes(request, context)
        needed, free = sum(sizes.values()), free_memory_bytes()
        if needed > free:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"it has {free} bytes of memory for {needed} of weights")
        number = next(self._numbers)
        self._stores[number] = Held({index: aligned_buffer(size) for index, size in sizes.items()})
        return str(number).encode()

    def read(self, request: bytes, context: Any) -> Iterator[bytes]:
        """Yield a part of a weight."""
        number, index, start, stop, is_held = _header(request[: HEADER.size], context)
        packing = _packing(request[HEADER.size :], context)
        held = self._store(number, context)
        value = _value(held.snapshot if is_held else held.values, index, context)
        _check_range(start, stop, value.size, context)
        yield from to_messages(value[start:stop], packing)

    def gather(self, request: bytes, context: Any) -> Iterator[bytes]:
        """Yield rows of a weight."""
        number, index, row_bytes, count, _ = _header(request[: HEADER.size], context)
        value = _value(self._store(number, context).values, index, context)
        if not row_bytes or value.size % row_bytes or len(request) != HEADER.size + 8 * count:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{count} rows of {row_bytes} bytes do not fit the call")
        rows = np.frombuffer(request, np.int64, count, HEADER.size)
        table = value.reshape(-1, row_bytes)
        if count and (rows.min() < 0 or rows.max() >= len(table)):
            context.abort(grpc.StatusCode.OUT_OF_RANGE, f"the weight has {len(table)} rows")
        step = max(1, PIECE_BYTES // row_bytes)
        for low in range(0, count, step):
            yield table[rows[low : low + step]].tobytes()

    def write(self, requests: Iterator[bytes], context: Any) -> bytes:
        """Replace a part of a weight."""
        request = next(requests, b"")
        number, index, start, stop, _ = _header(request[: HEADER.size], context)
        packing = _packing(request[HEADER.size :], context)
        held = self._store(number, context)
        with held.lock:
            value = _value(held.values, index, context)
            _check_range(start, stop, value.size, context)
            if held.snapshot.get(index) is value:  # keep the snapshot's array
                value = aligned_buffer(value.size)
                if stop - start < value.size:
                    value[:] = held.values[index]
                held.values[index] = value
        try:
            written, _ = from_messages(requests, value[start:stop], packing)
        except (ValueError, IndexError) as error:
            context.abort(grpc.StatusCode.DATA_LOSS, f"a write of bytes {start} to {stop} is malformed: {error}")
        if start + written != stop:
            context.abort(grpc.StatusCode.DATA_LOSS, f"a write ended at byte {start + written} instead of {stop}")
        return b""

    def hold(self, request: bytes, context: Any) -> bytes:
        """Take a snapshot of the weights."""
        held = self._store(_header(request, context)[0], context)
        held.snapshot = dict(held.values)
        return b""

    def release(self, request: bytes, context: Any) -> bytes:
        """Release one weight of the snapshot."""
        number, index, *_ = _header(request, context)
        self._store(number, context).snapshot.pop(index, None)
        return b""

    def end_hold(self, request: bytes, context: Any) -> bytes:
        """Release the snapshot."""
        self._store(_header(request, context)[0], context).snapshot = {}
        return b""

    def close(self, request: bytes, context: Any) -> bytes:
        """Free a store."""
        self._stores.pop(_header(request, context)[0], None)
        return b""

    def _store(self, number: int, context: Any) -> Held:
        if number not in self._stores:
            context.abort(grpc.StatusCode.NOT_FOUND, f"there is no store {number}")
        return self._stores[number]


def _header(request: bytes, context: Any) -> tuple[int, int, int, int, int]:
    if len(request) != HEADER.size:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"a call begins with {HEADER.size} bytes, not {len(request)}")
    number, index, start, stop, is_held = HEADER.unpack(request)
    return number, index, start, stop, is_held


def _packing(request: bytes, context: Any) -> Packing:
    try:
        return Packing.from_bytes(request)
    except ValueError as error:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        raise


def _value(values: dict[int, Bytes], index: int, context: Any) -> Bytes:
    if index not in values:
        context.abort(grpc.StatusCode.NOT_FOUND, f"there is no weight {index}")
    return values[index]


def _check_range(start: int, stop: int, size: int, context: Any) -> None:
    if not start <= stop <= size:
        context.abort(grpc.StatusCode.OUT_OF_RANGE, f"bytes {start} to {stop} are not in {size}")


def _sizes(request: bytes, context: Any) -> dict[int, int]:
    """Return the size of each weight that a store asks for: index -> bytes."""
    try:
        sizes = {int(index): int(size) for index, size in json.loads(request).items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        sizes = {-1: -1}
    if min(sizes.values(), default=0) < 0:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, "expected JSON: index of each weight -> its bytes")
    return sizes


def start(host: str, token: str) -> tuple[grpc.Server, int]:
    """Return a server that listens, and its port."""
    ours = WeightServer()
    unary, answers, takes = (
        grpc.unary_unary_rpc_method_handler,
        grpc.unary_stream_rpc_method_handler,
        grpc.stream_unary_rpc_method_handler,
    )
    handlers = {
        "Open": unary(ours.open),
        "Read": answers(ours.read),
        "Gather": answers(ours.gather),
        "Write": takes(ours.write),
        "Hold": unary(ours.hold),
        "Release": unary(ours.release),
        "EndHold": unary(ours.end_hold),
        "Close": unary(ours.close),
        "Stay": unary(lambda _request, _context: b""),
    }
    server = grpc.server(
        ThreadPoolExecutor(THREADS), options=[*UNLIMITED, *LIMITS], interceptors=[TokenGate(TOKEN_KEY, token)]
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port(target(host, 0))
    server.start()
    return server, port


def main(argv: Sequence[str]) -> None:
    """Serve the weights of one launch."""
    folder, index = Path(argv[0]), int(argv[1])
    address, token = listen_address(), new_token()
    server, port = start(address, token)
    about = {"target": target(address, port), "token": token, "free_bytes": free_memory_bytes()}
    announce(server_file(folder, index), about)
    server.wait_for_termination()


if __name__ == "__main__":
    main(sys.argv[1:])
