"""Connections through which each of several CSX reads and sets the weights that the others own.

Each CSX answers requests for what it owns. A request names the number of updates that it must come after, so that no
reader sees a weight too early. The owner's next update needs the gradients of all CSX, so no reader is too late.

A request is HEADER and its bytes; an answer is ANSWER and its bytes, or the text of an error. Both sides prove that
they have the secret of the run before the first request. The bytes are not encrypted.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cerebras_tensorflow.errors import CerebrasError, CollectiveError
from cerebras_tensorflow.runtime.host.announcement import announce, read_announcement
from cerebras_tensorflow.runtime.host.network import listen_address
from cerebras_tensorflow.runtime.weight_store.buffers import Bytes

logger = logging.getLogger(__name__)

_HEADER = struct.Struct("<QQQQQQ")
_ANSWER = struct.Struct("<BQ")  # whether it is an error; bytes that follow
_SECRET_BYTES = 32
_HANDSHAKE_LIMIT_S = 10.0
_POLL_S = 0.05
_MAX_WAITING = 64  # connections that have not shown the secret
_SOCKET_BYTES = 4 << 20


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

    Attributes:
        bytes_sent, bytes_received: Bytes of the counted requests.
    """

    def __init__(
        self,
        rank: int,
        folder: Path,
        secret: bytes,
        answer: Answer,
        check: Callable[[], None] = lambda: None,
        counted: Collection[int] = (),
    ) -> None:
        self.rank = rank
        self.bytes_sent = 0
        self.bytes_received = 0
        self._folder = folder
        self._secret = secret
        self._answer = answer
        self._check = check
        self._counted = frozenset(counted)
        self._free: dict[int, list[socket.socket]] = {}
        self._open: set[socket.socket] = set()
        self._waiting = 0
        self._is_closed = False
        self._lock = threading.Lock()
        address = listen_address()
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family)
        host, port = self._listener.getsockname()[:2]
        announce(peer_file(folder, rank), {"host": host, "port": port})
        threading.Thread(target=self._accept, name="cs_peers", daemon=True).start()

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
            size = self._asked(link, owner, request, data)
            if out is not None and size != out.nbytes:
                raise CollectiveError(f"rank {owner} sent {size} B, expected {out.nbytes} B")
            result = _received(link, np.empty(size, np.uint8) if out is None else out)
        self._count(request, 0 if data is None else data.nbytes, size)
        return result

    def stream(self, owner: int, request: Request, piece_bytes: int) -> Iterator[Bytes]:
        """Yield the bytes of an answer in pieces. Each is valid until the next.

        Raises:
            CollectiveError: If the other CSX failed.
        """
        target = np.empty(piece_bytes, np.uint8)
        with self._link(owner) as link:
            size = self._asked(link, owner, request, None)
            for start in range(0, size, piece_bytes):
                yield _received(link, target[: min(piece_bytes, size - start)])

    def _asked(self, link: socket.socket, owner: int, request: Request, data: Bytes | None) -> int:
        """Send a request; return the size of the answer.

        Raises:
            CollectiveError: If the answer is an error.
        """
        link.sendall(_HEADER.pack(*_fields(request), 0 if data is None else data.nbytes))
        if data is not None and data.nbytes:
            link.sendall(data.data)
        is_error, size = _ANSWER.unpack(_received(link, np.empty(_ANSWER.size, np.uint8)).tobytes())
        if is_error:
            text = _received(link, np.empty(size, np.uint8)).tobytes().decode(errors="replace")
            raise CollectiveError(f"rank {owner} failed: {text}")
        return int(size)

    def _count(self, request: Request, sent: int, received: int) -> None:
        if request.kind in self._counted:
            with self._lock:
                self.bytes_sent += sent
                self.bytes_received += received

    def close(self) -> None:
        """End all connections. Requests that wait for this CSX fail."""
        with self._lock:
            self._is_closed = True
            sockets = [self._listener, *self._open]
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    @contextmanager
    def _link(self, owner: int) -> Iterator[socket.socket]:
        """Give a connection that no other thread uses."""
        try:
            with self._lock:
                free = self._free.setdefault(owner, [])
                link = free.pop() if free else None
            if link is None:
                link = self._connected(owner)
            yield link
        except (OSError, EOFError) as error:
            self._raise_error_of_run()
            raise CollectiveError(f"rank {owner} closed its connection to rank {self.rank}: it has ended") from error
        with self._lock:
            self._free[owner].append(link)

    def _raise_error_of_run(self) -> None:
        """Raise the error that names the rank, if it is known within some seconds."""
        end = time.monotonic() + 40 * _POLL_S
        while time.monotonic() < end and not self._is_closed:
            self._check()
            time.sleep(_POLL_S)

    def _connected(self, owner: int) -> socket.socket:
        """Return a new connection, when the other CSX has started: on a busy machine that takes minutes.

        Raises:
            CollectiveError: If the other CSX fails.
        """
        while (about := read_announcement(peer_file(self._folder, owner))) is None:
            self._check()
            if self._is_closed:
                raise CollectiveError(f"rank {owner} has not announced its address, and rank {self.rank} ends")
            time.sleep(_POLL_S)
        link = socket.create_connection((about["host"], about["port"]), _HANDSHAKE_LIMIT_S)
        _tune(link)
        if not _prove(link, self._secret, b"caller", b"owner"):
            link.close()
            raise CollectiveError(f"rank {owner} does not know the secret of this run")
        link.settimeout(None)
        self._keep(link)
        return link

    def _keep(self, link: socket.socket) -> None:
        with self._lock:
            if self._is_closed:
                link.close()
                raise EOFError
            self._open.add(link)

    def _accept(self) -> None:
        """Background thread: start a thread for each connection."""
        while True:
            try:
                link, _ = self._listener.accept()
            except OSError:
                return  # closed
            with self._lock:
                is_full = self._waiting >= _MAX_WAITING
                self._waiting += not is_full
            if is_full:
                link.close()
            else:
                threading.Thread(target=self._serve, args=(link,), name="cs_peer", daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        """Background thread: answer the requests of one connection until it ends."""
        try:
            link.settimeout(_HANDSHAKE_LIMIT_S)
            _tune(link)
            try:
                is_known = _prove(link, self._secret, b"owner", b"caller")
            finally:
                with self._lock:
                    self._waiting -= 1
            if not is_known:
                return
            link.settimeout(None)
            self._keep(link)
            while True:
                self._reply(link)
        except (OSError, EOFError):
            pass  # the other side has ended; its own error says why
        except CerebrasError:  # in the middle of an answer
            logger.exception("a request of another CSX failed")
        finally:
            with self._lock:
                self._open.discard(link)
            link.close()

    def _reply(self, link: socket.socket) -> None:
        header = _HEADER.unpack(_received(link, np.empty(_HEADER.size, np.uint8)).tobytes())
        data = _received(link, np.empty(header[-1], np.uint8))
        request = Request(*header[:-1])
        try:
            size, parts = self._answer(request, data)
            is_error = False
        except CerebrasError as error:
            text = np.frombuffer(str(error).encode(), np.uint8)
            size, parts, is_error = text.nbytes, [text], True
        link.sendall(_ANSWER.pack(is_error, size))
        for part in parts:
            link.sendall(part.data)
        self._count(request, size, data.nbytes)


def _fields(request: Request) -> tuple[int, int, int, int, int]:
    return request.kind, request.index, request.start, request.stop, request.after


def _tune(link: socket.socket) -> None:
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for name in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        link.setsockopt(socket.SOL_SOCKET, name, _SOCKET_BYTES)


def _prove(link: socket.socket, secret: bytes, own: bytes, other: bytes) -> bool:
    """Show that this side has the secret, and return whether the other one has it. Both sides send fresh numbers."""
    mine = secrets.token_bytes(_SECRET_BYTES)
    link.sendall(mine)
    theirs = _received(link, np.empty(_SECRET_BYTES, np.uint8)).tobytes()
    link.sendall(hmac.digest(secret, own + mine + theirs, "sha256"))
    shown = _received(link, np.empty(_SECRET_BYTES, np.uint8)).tobytes()
    return hmac.compare_digest(shown, hmac.digest(secret, other + theirs + mine, "sha256"))


def _received(link: socket.socket, out: Bytes) -> Bytes:
    """Fill an array from a connection.

    Raises:
        EOFError: If the other side has closed it.
    """
    view = out.data
    while view:
        count = link.recv_into(view)
        if not count:
            raise EOFError
        view = view[count:]
    return out
