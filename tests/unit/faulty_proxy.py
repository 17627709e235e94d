"""A proxy on loopback in front of an S3 server: it delays, cuts, throttles, corrupts and forgets answers, by plan."""

from __future__ import annotations

import contextlib
import http.client
import random
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler

from tests.unit.loopback_server import LoopbackServer

FAULTS = ("throttle", "cut", "corrupt", "forget", "refuse", "delay")
_THROTTLED = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


class FaultyProxy(LoopbackServer):
    """A server that passes requests on. A context manager.

    Args:
        port: Of the real server.

    Attributes:
        url: Where clients connect.
        rate: Share of the requests that get a fault.
        faults: The kinds of faults: throttle (503, and the server does not see the request), cut (half an answer),
            corrupt (one byte of an answer's body), forget (the server does its work, the answer is lost), refuse (the
            connection is closed, and the server does not see the request), delay (the request waits for `delay_s`).
        delay_s: How long a delayed request waits.
        given: Number of each fault so far.
    """

    def __init__(self, port: int, seed: int = 1) -> None:
        self.rate = 0.0
        self.delay_s = 0.02
        self.faults: tuple[str, ...] = FAULTS
        self.given: Counter[str] = Counter()
        self.num_requests = 0
        self._target = port
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        super().__init__()

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        size = int(handler.headers.get("Content-Length", 0))
        body = handler.rfile.read(size)
        if len(body) < size:  # the client ended in the middle of its request
            handler.close_connection = True
            return
        fault = self._next(handler.command)
        if fault == "refuse":
            handler.close_connection = True
            return
        if fault == "throttle":
            self._answer(handler, 503, {}, _THROTTLED)
            return
        if fault == "delay":
            time.sleep(self.delay_s)
        headers = {key: value for key, value in handler.headers.items() if key.lower() != "connection"}
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self._target, timeout=60)) as server:
            server.request(handler.command, handler.path, body, headers)
            response = server.getresponse()
            content = response.read()
        if fault == "forget":
            handler.close_connection = True
            return
        if fault == "corrupt" and content:
            spot = self._random.randrange(len(content))
            content = content[:spot] + bytes([content[spot] ^ 0x10]) + content[spot + 1 :]
        hop = ("transfer-encoding", "connection", "content-length", "date", "server")
        kept = {key: value for key, value in response.getheaders() if key.lower() not in hop}
        if handler.command == "HEAD":
            kept["Content-Length"] = response.getheader("Content-Length", "0")
        self._answer(handler, response.status, kept, content, is_cut=fault == "cut")

    def _next(self, command: str) -> str | None:
        with self._lock:
            self.num_requests += 1
            if self._random.random() >= self.rate:
                return None
            # TLS and checksums of requests protect all but the bodies of GET.
            known = [fault for fault in self.faults if command == "GET" or fault != "corrupt"]
            if not known:
                return None
            fault = self._random.choice(known)
            self.given[fault] += 1
            return fault

    def _answer(
        self,
        handler: BaseHTTPRequestHandler,
        status: int,
        headers: dict[str, str],
        content: bytes,
        is_cut: bool = False,
    ) -> None:
        handler.send_response_only(status)
        for key, value in headers.items():
            handler.send_header(key, value)
        if handler.command != "HEAD":
            handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(content[: len(content) // 2] if is_cut else content)
        if is_cut:
            handler.close_connection = True
