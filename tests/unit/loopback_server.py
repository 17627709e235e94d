"""An HTTP server on loopback that answers each connection in a thread of its own."""

from __future__ import annotations

import contextlib
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from typing_extensions import Self


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # so that server_close() waits for the threads

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self._connections: list[socket.socket] = []

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections = [connection for connection in self._connections if connection.fileno() >= 0]
        self._connections.append(request)
        super().process_request(request, client_address)

    def end_connections(self) -> None:
        """End what clients still hold open."""
        for connection in self._connections:
            with contextlib.suppress(OSError):  # the client has gone
                connection.shutdown(socket.SHUT_RDWR)


class LoopbackServer:
    """A server whose subclass answers the requests. A context manager; at its end no connection and no thread is left.

    Attributes:
        url: Where clients connect.
    """

    def __init__(self) -> None:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except OSError:  # the client has gone
                    self.close_connection = True

            def log_message(self, format: str, *words: object) -> None:
                pass

            def do_GET(self) -> None:
                owner.answer(self)

            do_PUT = do_POST = do_DELETE = do_HEAD = do_GET

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.end_connections()
        self._server.server_close()
        self._thread.join()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer one request."""
        raise AssertionError("a subclass answers")
