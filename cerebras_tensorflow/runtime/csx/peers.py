"""Connections through which each of several CSX reads and sets the weights that the others own.

Each CSX answers requests for what it owns. A request names the number of updates that it must come after, so that no
reader sees a weight too early. No CSX begins its update before all have ended their passes over the model
(`GradientSums.complete` in micro_batches/steps.py), so no reader is too late.

A request is HEADER and its bytes; links.py has the form of an answer. Both sides prove that they have the secret of the
run before the first request. The bytes are not encrypted.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cerebras_tensorflow.errors import CollectiveError
from cerebras_tensorflow.runtime.collectives.signs_of_life import describe
from cerebras_tensorflow.runtime.host import entrance, links
from cerebras_tensorflow.runtime.host.announcement import announce, read_announcement
from cerebras_tensorflow.runtime.host.links import Incoming, LinkEndedError, OwnerFailedError
from cerebras_tensorflow.runtime.host.memory import free_memory_bytes
from cerebras_tensorflow.runtime.host.network import listen_address
from cerebras_tensorflow.runtime.weight_store.buffers import Buffers, Bytes
from cerebras_tensorflow.runtime.weight_store.shared_memory import SharedMemory, Window
from cerebras_tensorflow.units import format_bytes

logger = logging.getLogger(__name__)

_HEADER = struct.Struct("<QQQQQQ")
_POLL_S = 0.05
_SKIPPED_BYTES = 1 << 20  # of a refused request, at a time
_CHECKED_FROM_BYTES = 64 << 20  # sums come in pieces of a few MB; to look up free memory takes longer than one of them


@dataclass(frozen=True)
class Request:
    """A request to the owner of a weight.

    Attributes:
        kind: A number that the two sides agree on.
        index: The weight.
        start, stop: Rows, or what the kind says.
        after: Number of updates that the owner must have done.
    """

    kind: int
    index: int = 0
    start: int = 0
    stop: int = 0
    after: int = 0


Answer = Callable[[Request, Bytes], tuple[int, Iterable[Bytes]]]
"""Takes a request and its bytes; returns the size of the answer, and its parts. A part is valid until the next one."""


def peer_file(folder: Path, rank: int) -> Path:
    """Return the file in which a CSX announces where it answers."""
    return folder / f"peer-{rank}.json"


class Peers:
    """The connections of one CSX to the others.

    Args:
        rank: Number of this CSX.
        folder: Private folder of the run, which all CSX see.
        secret: The secret of the run.
        answer: Answers a request, given its bytes. Each connection calls it in a thread of its own.
        check: Raises the error of the run, if one is known.
        counted: Kinds of requests whose bytes are counted.
        memory: Memory that CSX on the same machine may read; None: there is none.

    Attributes:
        bytes_sent, bytes_received: Bytes of the counted requests, and those that `count` was told.
        check: Raises the error of the run, if one is known.
    """

    def __init__(
        self,
        rank: int,
        folder: Path,
        secret: bytes,
        answer: Answer,
        check: Callable[[], None] = lambda: None,
        counted: Collection[int] = (),
        memory: SharedMemory | None = None,
    ) -> None:
        self.rank = rank
        self.bytes_sent = 0
        self.bytes_received = 0
        self._folder = folder
        self._secret = secret
        self._answer = answer
        self.check = check
        self._counted = frozenset(counted)
        self._windows: dict[int, Window | None] = {}
        self._free: dict[int, list[socket.socket]] = {}
        self._open: set[socket.socket] = set()
        self._is_closed = False
        self._lock = threading.Lock()
        self._buffers = Buffers()
        address = listen_address()
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        listener = socket.create_server((address, 0), family=family)
        host, port = listener.getsockname()[:2]
        self._entrance = entrance.Entrance(listener, self._serve, "cs_peer")
        shared = {} if memory is None else {"memory": memory.about()}
        announce(peer_file(folder, rank), {"host": host, "port": port, **shared})

    def ask(self, owner: int, request: Request, data: Bytes | None = None, out: Bytes | None = None) -> Bytes:
        """Send a request to another CSX; return the bytes of the answer.

        Args:
            owner: The other CSX.
            request: The request.
            data: Bytes that belong to it.
            out: Memory for the answer. None: it is allocated.

        Raises:
            CollectiveError: If the other CSX failed.
        """
        with self._link(owner) as link:
            answer = self._asked(link, request, data)
            if out is not None and answer.size != out.nbytes:
                raise CollectiveError(f"rank {owner} sent {answer.size} B, expected {out.nbytes} B")
            result = answer.read(np.empty(answer.size, np.uint8) if out is None else out)
        self._count(request, 0 if data is None else data.nbytes, answer.size)
        return result

    def stream(self, owner: int, request: Request, piece_bytes: int) -> Iterator[Bytes]:
        """Yield the bytes of an answer in pieces. Each is valid until the next.

        Raises:
            CollectiveError: If the other CSX failed.
        """
        target = np.empty(piece_bytes, np.uint8)
        with self._link(owner) as link:
            answer = self._asked(link, request, None)
            for start in range(0, answer.size, piece_bytes):
                yield answer.read(target[: min(piece_bytes, answer.size - start)])

    def _asked(self, link: socket.socket, request: Request, data: Bytes | None) -> Incoming:
        """Send a request; return the answer.

        Raises:
            OwnerFailedError: If the answer is an error.
            LinkEndedError: If the connection has ended.
        """
        links.send(link, _HEADER.pack(*_fields(request), 0 if data is None else data.nbytes), self._wait)
        if data is not None:
            links.send(link, data, self._wait)
        return Incoming(link, self._wait)

    def _wait(self, _waited_s: float) -> None:
        self.check()

    def window(self, rank: int) -> Window | None:
        """Return the memory of another CSX; None if it is on another machine, or has none to read.

        Raises:
            CollectiveError: If the other CSX fails before it has announced it.
        """
        if rank not in self._windows:
            about = self._announced(rank).get("memory")
            self._windows[rank] = None if about is None else Window.open(about)
        return self._windows[rank]

    def count(self, sent: int, received: int) -> None:
        """Count bytes that CSX took from each other's memory."""
        with self._lock:
            self.bytes_sent += sent
            self.bytes_received += received

    def _count(self, request: Request, sent: int, received: int) -> None:
        if request.kind in self._counted:
            self.count(sent, received)

    def close(self) -> None:
        """End all connections. Requests that wait for this CSX fail."""
        with self._lock:
            self._is_closed = True
            opened = list(self._open)
        self._entrance.close()
        for one in opened:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    @contextmanager
    def _link(self, owner: int) -> Iterator[socket.socket]:
        """Give a connection for one thread. After an error it is closed: more of an answer may follow."""
        link = None
        try:
            with self._lock:
                free = self._free.setdefault(owner, [])
                link = free.pop() if free else None
            if link is None:
                link = self._connected(owner)
            yield link
        except LinkEndedError as error:
            self._drop(link)
            self._raise_error_of_run()
            what = f"lost its connection to rank {self.rank}: {error}"
            raise CollectiveError(describe(self._folder, owner, what)) from error
        except OwnerFailedError as error:
            self._drop(link)
            raise CollectiveError(describe(self._folder, owner, f"failed: {error}")) from error
        except BaseException:
            self._drop(link)
            raise
        with self._lock:
            self._free[owner].append(link)

    def _drop(self, link: socket.socket | None) -> None:
        if link is not None:
            with self._lock:
                self._open.discard(link)
            link.close()

    def _raise_error_of_run(self) -> None:
        """Raise the error that names the rank, if it is known within some seconds."""
        end = time.monotonic() + 40 * _POLL_S
        while time.monotonic() < end and not self._is_closed:
            self.check()
            time.sleep(_POLL_S)

    def _connected(self, owner: int) -> socket.socket:
        """Return a new connection.

        Raises:
            CollectiveError: If the other CSX fails.
        """
        about = self._announced(owner)
        return entrance.connect((about["host"], about["port"]), partial(self._prove_to, owner), self._go_on)

    def _announced(self, owner: int) -> dict[str, Any]:
        """Return what another CSX announces when it has started: on a busy machine that takes minutes.

        Raises:
            CollectiveError: If the other CSX fails.
        """
        while (about := read_announcement(peer_file(self._folder, owner))) is None:
            self.check()
            if self._is_closed:
                raise CollectiveError(f"rank {owner} has not announced its address, and rank {self.rank} ends")
            time.sleep(_POLL_S)
        return about

    def _prove_to(self, owner: int, link: socket.socket, end: float) -> None:
        """Show an owner the secret, and keep the connection.

        Raises:
            CollectiveError: If the owner does not have it.
        """
        if not links.prove(link, self._secret, b"caller", b"owner", end):
            raise CollectiveError(f"rank {owner} does not know the secret of this run")
        links.start_messages(link)
        self._keep(link)

    def _go_on(self, error: LinkEndedError) -> None:
        """Raise the error of the run if one is known, or that of the connection if this side has ended."""
        self.check()
        if self._is_closed:
            raise error

    def _keep(self, link: socket.socket) -> None:
        with self._lock:
            if self._is_closed:
                raise LinkEndedError("this side has ended")
            self._open.add(link)

    def _serve(self, link: socket.socket, proving: AbstractContextManager[float]) -> None:
        """Background thread: answer the requests of one connection until it ends."""
        try:
            with proving as end:
                links.tune(link)
                is_known = links.prove(link, self._secret, b"owner", b"caller", end)
            if not is_known:
                return
            links.start_messages(link)
            self._keep(link)
            while True:
                self._reply(link)
        except LinkEndedError:
            pass  # the other side has ended; its own error says why
        except Exception:
            logger.exception("rank %d: a request of another CSX failed", self.rank)
        finally:
            self._drop(link)

    def _reply(self, link: socket.socket) -> None:
        *fields, num_bytes = _HEADER.unpack(self._next(link, _HEADER.size).tobytes())
        request = Request(*fields)
        if num_bytes >= _CHECKED_FROM_BYTES and num_bytes > free_memory_bytes():
            for begin in range(0, num_bytes, _SKIPPED_BYTES):
                self._next(link, min(_SKIPPED_BYTES, num_bytes - begin))
            links.send_answer(link, partial(_refuse, num_bytes))
            return
        data = self._next(link, num_bytes)
        self._count(request, 0, data.nbytes)
        size = links.send_answer(link, partial(self._answer, request, data))
        self._count(request, size or 0, 0)

    def _next(self, link: socket.socket, num_bytes: int) -> Bytes:
        """Return the next bytes of a connection, however long they take."""
        return links.receive(link, self._buffers.take(num_bytes), links.wait_on)


def _refuse(num_bytes: int) -> tuple[int, Iterable[Bytes]]:
    raise CollectiveError(f"a request with {format_bytes(num_bytes)} does not fit into free memory")


def _fields(request: Request) -> tuple[int, int, int, int, int]:
    return request.kind, request.index, request.start, request.stop, request.after
