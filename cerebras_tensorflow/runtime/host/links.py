"""A connection between two processes of a run: whole messages, answers in parts, the proof of the secret, and its end.

An answer starts with ANSWER: whether it is an error, and its size. The text of the error follows, or the parts of the
answer. Each part starts with ANSWER too, so that an error may take the place of a part.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import secrets
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cerebras_tensorflow.errors import CerebrasError

Bytes: TypeAlias = npt.NDArray[np.uint8]

ANSWER = struct.Struct("<BQ")  # whether it is an error; bytes that follow
CHECK_S = 1.0
"""How often a side that waits for the other one looks for the error of the run [s]."""
_SECRET_BYTES = 32
_MOST_TEXT_BYTES = 1 << 20  # of an error
# A host that vanishes sends nothing: after a minute without an answer to the system's probes the connection ends.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 20), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 4))

Check = Callable[[float], None]
"""Called each time that a side has waited CHECK_S more, with the seconds in all. It may raise the error of the run."""


class LinkEndedError(Exception):
    """The connection is closed, or the other side does not answer."""


class OwnerFailedError(Exception):
    """The side that answers could not: its own error."""


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
    """Set the options of a connection: no delay, and probes while the other side is silent.

    The system chooses the size of the buffers: fixed ones of 4 MB were slower, since they do not fit into the cache.
    """
    with socket_calls():
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            link.setsockopt(socket.IPPROTO_TCP, option, value)


def start_messages(link: socket.socket) -> None:
    """Give up the time limit of the proof: from now on a message waits as long as the run has no error.

    The system, not Python, ends a call after CHECK_S: Python would ask before each call whether it can proceed.
    """
    limit = struct.pack("ll", *divmod(int(1e6 * CHECK_S), 1_000_000))  # seconds and microseconds
    with socket_calls():
        link.settimeout(None)
        for name in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            link.setsockopt(socket.SOL_SOCKET, name, limit)


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
        count = _moved(lambda place: link.recv_into(place, 0, socket.MSG_WAITALL), view, check)
        if not count:
            raise LinkEndedError("the other side has closed the connection")
        view = view[count:]
    return out


def send(link: socket.socket, content: bytes | Bytes, check: Check | None = None) -> None:
    """Send bytes; arguments and errors are those of `receive`."""
    send_joined(link, [content], check)


def send_joined(link: socket.socket, contents: Iterable[bytes | Bytes], check: Check | None = None) -> None:
    """Send bytes from several places as one message, without a copy; errors are those of `receive`."""
    views = [memoryview(one) if isinstance(one, bytes) else one.data for one in contents if len(one)]
    while views:
        count = _moved(link.sendmsg, views, check)
        while views and count >= len(views[0]):
            count -= len(views.pop(0))
        if views:
            views[0] = views[0][count:]


def _moved(call: Callable[[Any], int], place: Any, check: Check | None) -> int:
    """Return how many bytes a call of the socket has moved."""
    waited_s = 0.0
    while True:
        try:
            return call(place)
        except (TimeoutError, BlockingIOError) as error:
            if check is None or error.errno == errno.ETIMEDOUT:  # not the socket's limit: the other host is gone
                raise LinkEndedError(str(error)) from error
        except OSError as error:
            raise LinkEndedError(str(error)) from error
        waited_s += CHECK_S
        check(waited_s)


def wait_on(_waited_s: float) -> None:
    """Let a side that answers wait: only the end of the connection ends it."""


def send_answer(link: socket.socket, make: Callable[[], tuple[int, Iterable[Bytes]]]) -> int | None:
    """Make an answer and send it; return its size, or None if it was an error.

    An error of `make` or of a part goes to the other side in place of the answer or of the part.

    Args:
        link: The connection.
        make: Returns the size of the answer, and its parts. A part is valid until the next one.

    Raises:
        LinkEndedError: If the connection has ended.
    """
    try:
        size, parts = make()
        send_parts(link, b"", size, parts, wait_on)
    except LinkEndedError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, the other side waits for the answer and must know it
        text = str(error) if isinstance(error, CerebrasError) else f"{type(error).__name__}: {error}"
        content = text.encode(errors="replace")[:_MOST_TEXT_BYTES]
        send(link, ANSWER.pack(True, len(content)) + content, wait_on)
        return None
    return size


def send_parts(link: socket.socket, first: bytes, size: int, parts: Iterable[Bytes], check: Check | None) -> None:
    """Send bytes in parts, which `Incoming` reads.

    Args:
        link: The connection.
        first: Bytes before them.
        size: Bytes that the parts stand for.
        parts: The parts. Each is valid until the next one.
        check: Called while nothing can be sent.

    Raises:
        LinkEndedError: If the connection has ended.
    """
    first += ANSWER.pack(False, size)
    for part in filter(len, parts):  # the other side reads no part after the last byte
        send_joined(link, [first + ANSWER.pack(False, part.nbytes), part], check)
        first = b""
    send(link, first, check)


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
            stop = min(start + self.part_bytes(), out.nbytes)
            receive(self._link, out[start:stop], self._check)
            self._left -= stop - start
            start = stop
        return out

    def part_bytes(self) -> int:
        """Return the bytes that are left of the part, or those of the next one; errors are those of the class."""
        if not self._left:
            self._left = self._next()
        return self._left

    def _next(self) -> int:
        """Return the size of the answer or of its next part."""
        start = receive(self._link, np.empty(ANSWER.size, np.uint8), self._check)
        is_error, size = ANSWER.unpack(start.tobytes())
        if is_error:
            if size > _MOST_TEXT_BYTES:
                raise LinkEndedError(f"the other side sent malformed bytes: an error of {size} bytes")
            text = receive(self._link, np.empty(size, np.uint8), self._check).tobytes().decode(errors="replace")
            raise OwnerFailedError(text)
        return int(size)
