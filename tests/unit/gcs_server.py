"""A server on loopback with the XML interface of Google Cloud Storage, as its public documentation describes it.

The emulators on package indexes have the JSON interface only; obstore uses the XML one.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.unit.loopback_server import LoopbackServer

_TIME = "2026-11-22T12:00:00.000Z"
_PAGE = 3  # keys in a page of a listing, so that tests have several


class GcsServer(LoopbackServer):
    """A server with one bucket, `bucket`. A context manager.

    Attributes:
        objects: Key -> content and generation.
        service_account: What a client takes for the key of a service account; it leads to the server.
    """

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, int]] = {}
        self._writes = 0
        self._lock = threading.Lock()
        super().__init__()
        fields = {"gcs_base_url": self.url, "disable_oauth": True}
        self.service_account = json.dumps({**fields, "client_email": "", "private_key": "", "private_key_id": ""})

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Answer one request."""
        url = urlsplit(handler.path)
        bucket, _, key = unquote(url.path).lstrip("/").partition("/")
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        with self._lock:
            if bucket != "bucket":
                _send(handler, 404, b"<Error><Code>NoSuchBucket</Code></Error>")
            elif not key:
                _send(handler, 200, self._listing({name: values[0] for name, values in parse_qs(url.query).items()}))
            elif handler.command == "PUT":
                self._put(handler, key, body)
            elif key not in self.objects:
                _send(handler, 404, b"<Error><Code>NoSuchKey</Code></Error>")
            elif handler.command == "DELETE":
                del self.objects[key]
                _send(handler, 204)
            else:
                self._get(handler, key)

    def _put(self, handler: BaseHTTPRequestHandler, key: str, body: bytes) -> None:
        wanted = handler.headers.get("x-goog-if-generation-match")
        generation = self.objects[key][1] if key in self.objects else 0
        if wanted is not None and int(wanted) != generation:
            _send(handler, 412, b"<Error><Code>PreconditionFailed</Code></Error>")
            return
        self._writes += 1
        self.objects[key] = body, self._writes
        _send(handler, 200, headers=self._headers(key))

    def _get(self, handler: BaseHTTPRequestHandler, key: str) -> None:
        content, headers = self.objects[key][0], self._headers(key)
        asked = handler.headers.get("Range", "").removeprefix("bytes=")
        if not asked:
            _send(handler, 200, content, headers)
            return
        first, last = (int(number) for number in asked.split("-"))
        headers["Content-Range"] = f"bytes {first}-{min(last, len(content) - 1)}/{len(content)}"
        _send(handler, 206, content[first : last + 1], headers)

    def _headers(self, key: str) -> dict[str, str]:
        generation = str(self.objects[key][1])
        return {
            **{"ETag": f'"{generation}"', "x-goog-generation": generation},
            "Last-Modified": "Sun, 22 Nov 2026 12:00:00 GMT",
        }

    def _listing(self, query: Mapping[str, str]) -> bytes:
        prefix, end = query.get("prefix", ""), query.get("delimiter", "")
        items: dict[str, str] = {}
        for key in sorted(self.objects):
            head, found, _ = key.removeprefix(prefix).partition(end) if end else (key, "", "")
            if not key.startswith(prefix) or key <= query.get("start-after", ""):
                continue
            if found:
                folder = escape(f"{prefix}{head}{end}")
                items[folder] = f"<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>"
                continue
            items[key] = (
                f"<Contents><Key>{escape(key)}</Key><Size>{len(self.objects[key][0])}</Size>"
                f"<LastModified>{_TIME}</LastModified><ETag>x</ETag></Contents>"
            )
        first = int(query.get("continuation-token", 0))
        page, more = list(items.values())[first : first + _PAGE], first + _PAGE < len(items)
        token = f"<NextContinuationToken>{first + _PAGE}</NextContinuationToken>" if more else ""
        return f"<ListBucketResult>{''.join(page)}{token}</ListBucketResult>".encode()


def _send(
    handler: BaseHTTPRequestHandler, status: int, content: bytes = b"", headers: Mapping[str, str] | None = None
) -> None:
    handler.send_response_only(status)
    for name, value in (headers or {}).items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(content)))
    handler.end_headers()
    if handler.command != "HEAD":
        handler.wfile.write(content)
