"""A connection between two CSX: whole messages, answers in parts, the proof of the secret, and its end.

An answer starts with ANSWER: whether it is an error, and its size. The text of the error follows, or the parts of the
answer. Each part starts with ANSWER too, so that an error may take the place of a part.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from cerebras_tensorflow.errors import CerebrasError
from cerebras_tensorflow.runtime.collectives.interface import Bytes

ANSWER = struct.Struct("<BQ")  # whether it is an error; bytes that follow
CHECK_S = 1.0
"""How often a side that waits for the other one looks for the error of the run [s]."""
_SECRET_BYTES = 32
_SOCKET_BYTES = 4 << 20
# A host that vanishes sends nothing: after a minute without an answer to the system's probes the connection ends.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 20), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 4))

Check = Callable[[], None]
"""Raises the error of the run, if one is known."""


class LinkEndedError(Exception):
    """The connection is closed, or the other side does not answer."""


class OwnerFailedError(Exception):
    """The CSX that answers could not: its own error."""


@contextlib.contextmanager
def socket_calls() -> Iterator[None]:
    """In this block an error of the system is one of the connection.

    Raises:
        LinkEndedError: In place of an OSError.
    """
    try:
        yield
    except OSError as error:
        raise LinkEndedError(str(error)) from error


def tune(link: socket.socket) -> None:
    """Set the options of a connection: no delay, large buffers, and probes while the other side is silent."""
    with socket_calls():
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for name in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            link.setsockopt(socket.SOL_SOCKET, name, _SOCKET_BYTES)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            link.setsockopt(socket.IPPROTO_TCP, option, value)


def start_messages(link: socket.socket) -> None:
    """Give up the time limit of the proof: from now on a message waits as long as the run has no error."""
    with socket_calls():
        link.settimeout(CHECK_S)


def prove(link: socket.socket, secret: bytes, own: bytes, other: bytes, end: float) -> bool:
    """Show that this side has the secret, and return whether the other one has it. Both sides send fresh numbers.

    Args:
        link: The connection.
        secret: The secret.
        own: What this side signs.
        other: What the other side signs.
        end: When the other side must have sent all its bytes, by `time.monotonic`.

    Raises:
        LinkEndedError: If it has not, or the connection has ended.
    """
    mine = secrets.token_bytes(_SECRET_BYTES)
    send(link, mine)
    theirs = receive_bytes(link, _SECRET_BYTES, end)
    send(link, hmac.digest(secret, own + mine + theirs, "sha256"))
    shown = receive_bytes(link, _SECRET_BYTES, end)
    return hmac.compare_digest(shown, hmac.digest(secret, other + theirs + mine, "sha256"))


def receive_bytes(link: socket.socket, count: int, end: float) -> bytes:
    """Return bytes of a connection that come until a time, however they are divided; errors are those of `prove`."""
    content = b""
    while len(content) < count:
        left_s = end - time.monotonic()
        if left_s <= 0:
            raise LinkEndedError("the other side has not shown the secret in time")
        with socket_calls():
            link.settimeout(left_s)
            piece = link.recv(count - len(content))
        if not piece:
            raise LinkEndedError("the other side has closed the connection")
        content += piece
    return content


def receive(link: socket.socket, out: Bytes, check: Check | None = None) -> Bytes:
    """Fill an array from a connection.

    Args:
        link: The connection.
        out: The array: shape (bytes,).
        check: Called each time that the socket's time limit ends; then the call waits on. None: the limit is an error.

    Raises:
        LinkEndedError: If the connection has ended.
    """
    view = out.data
    while view:
        count = _moved(link.recv_into, view, check)
        if not count:
            raise LinkEndedError("the other side has closed the connection")
        view = view[count:]
    return out


def send(link: socket.socket, content: bytes | Bytes, check: Check | None = None) -> None:
    """Send bytes; arguments and errors are those of `receive`."""
    view = memoryview(content) if isinstance(content, bytes) else content.data
    while view:
        view = view[_moved(link.send, view, check) :]


def _moved(call: Callable[[memoryview], int], view: memoryview, check: Check | None) -> int:
    """Return how many bytes a call of the socket has moved."""
    while True:
        try:
            return call(view)
        except TimeoutError as error:
            if check is None or error.errno is not None:  # not the socket's limit: the other host does not answer
                raise LinkEndedError(str(error)) from error
        except OSError as error:
            raise LinkEndedError(str(error)) from error
        check()


def wait_on() -> None:
    """Let a side that answers wait: only the end of the connection ends it."""


def send_answer(link: socket.socket, make: Callable[[], tuple[int, Iterable[Bytes]]]) -> int:
    """Make an answer and send it; return its size.

    An error of `make` or of a part goes to the other side in place of the answer or of the part.

    Args:
        link: The connection.
        make: Returns the size of the answer, and its parts. A part is valid until the next one.

    Raises:
        LinkEndedError: If the connection has ended.
    """
    try:
        size, parts = make()
        send(link, ANSWER.pack(False, size), wait_on)
        for part in filter(len, parts):  # the other side reads no part after the last byte
            send(link, ANSWER.pack(False, part.nbytes), wait_on)
            send(link, part, wait_on)
    except LinkEndedError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, the other side waits for the answer and must know it
        text = str(error) if isinstance(error, CerebrasError) else f"{type(error).__name__}: {error}"
        content = text.encode()
        send(link, ANSWER.pack(True, len(content)) + content, wait_on)
        return 0
    return size


class Incoming:
    """An answer that arrives.

    Args:
        link: The connection.
        check: Called while nothing arrives.

    Attributes:
        size: Bytes of the answer.

    Raises:
        OwnerFailedError: If the answer is an error.
        LinkEndedError: If the connection has ended.
    """

    def __init__(self, link: socket.socket, check: Check) -> None:
        self._link = link
        self._check = check
        self._left = 0  # bytes of the part
        self.size = self._next()

    def read(self, out: Bytes) -> Bytes:
        """Fill an array with the next bytes of the answer; errors are those of the class."""
        start = 0
        while start < out.nbytes:
            if not self._left:
                self._left = self._next()
            stop = min(start + self._left, out.nbytes)
            receive(self._link, out[start:stop], self._check)
            self._left -= stop - start
            start = stop
        return out

    def _next(self) -> int:
        """Return the size of the answer or of its next part."""
        start = receive(self._link, np.empty(ANSWER.size, np.uint8), self._check)
        is_error, size = ANSWER.unpack(start.tobytes())
        if is_error:
            text = receive(self._link, np.empty(size, np.uint8), self._check).tobytes().decode(errors="replace")
            raise OwnerFailedError(text)
        return int(size)
