"""How connections between processes of a run begin: one side accepts, the other one calls, both prove the secret.

Whoever can reach the port may connect. A connection without proof is closed after PROOF_LIMIT_S, and few are open at a
time; a caller that finds no place tries again.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from cerebras_tensorflow.runtime.host import links
from cerebras_tensorflow.runtime.host.links import LinkEndedError

logger = logging.getLogger(__name__)

PROOF_LIMIT_S = 10.0
_MOST_STRANGERS = 64  # connections that have not shown the secret
_PAUSE_S = 0.1

Serve = Callable[[socket.socket, AbstractContextManager[float]], None]
"""Serves a connection and closes it. The proof is in a block of the context manager, which gives the proof's end."""


class Entrance:
    """Accepts connections, and serves each in a thread of its own, until it is closed.

    Args:
        listener: Where to accept. `close` closes it.
        serve: Serves a connection.
        name: Name of the threads.
    """

    def __init__(self, listener: socket.socket, serve: Serve, name: str) -> None:
        self._listener = listener
        self._serve = serve
        self._name = name
        self._strangers = threading.BoundedSemaphore(_MOST_STRANGERS)
        self._closed = threading.Event()
        threading.Thread(target=self._accept, name=name, daemon=True).start()

    def close(self) -> None:
        """Accept no more."""
        self._closed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends the call that accepts
        self._listener.close()

    def _accept(self) -> None:
        """Background thread: start a thread for each connection."""
        is_logged = False
        while not self._closed.is_set():
            try:
                link, _ = self._listener.accept()
                self._start(link)
            except (OSError, RuntimeError) as error:  # also for want of file descriptors or of threads: that may pass
                is_closed = self._closed.wait(_PAUSE_S)
                if not (is_closed or is_logged):
                    logger.warning("a connection was not accepted (%s); trying again", error)
                    is_logged = True

    def _start(self, link: socket.socket) -> None:
        """Serve a connection, or close it if there are too many strangers.

        Raises:
            RuntimeError: If no thread can be started.
        """
        if not self._strangers.acquire(blocking=False):
            link.close()
            return
        try:
            threading.Thread(target=self._serve, args=(link, self._proving()), name=self._name, daemon=True).start()
        except BaseException:
            self._strangers.release()
            link.close()
            raise

    @contextmanager
    def _proving(self) -> Iterator[float]:
        """Give the time by which a stranger must have shown the secret."""
        try:
            yield time.monotonic() + PROOF_LIMIT_S
        finally:
            self._strangers.release()


def connect(
    place: tuple[str, int], prove: Callable[[socket.socket, float], None], go_on: Callable[[LinkEndedError], None]
) -> socket.socket:
    """Return a connection whose sides have proven that they have the secret.

    Args:
        place: Host and port of the other side.
        prove: Does the proof on a connection, until a time.
        go_on: Called with the error of each attempt; raises an error if there shall be no other one.

    Raises:
        LinkEndedError: If nothing listens there.
    """
    is_logged = False
    while True:
        try:
            return _proven(place, prove)
        except LinkEndedError as error:
            if isinstance(error.__cause__, ConnectionRefusedError):
                raise
            go_on(error)
            if not is_logged:
                logger.warning("no connection to %s port %d yet (%s); trying again", *place, error)
                is_logged = True
        time.sleep(_PAUSE_S)


def _proven(place: tuple[str, int], prove: Callable[[socket.socket, float], None]) -> socket.socket:
    """Return a connection, after one attempt; errors are those of `prove`, and LinkEndedError."""
    with links.socket_calls():
        link = socket.create_connection(place, PROOF_LIMIT_S)
    try:
        links.tune(link)
        prove(link, time.monotonic() + PROOF_LIMIT_S)
    except BaseException:
        link.close()
        raise
    return link
