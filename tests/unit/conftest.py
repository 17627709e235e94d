"""An S3 server for the tests that need object storage: moto's, on loopback, behind a proxy that can fail."""

from __future__ import annotations

import http.client
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.faulty_proxy import FaultyProxy

S3_SECRET = "wJalrXUtnFEMIsecretKEY"


@pytest.fixture(scope="session")
def s3_port() -> Iterator[int]:
    """The port of a real server."""
    pytest.importorskip("obstore")
    moto = pytest.importorskip("moto.server")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield server.get_host_and_port()[1]
    server.stop()


@pytest.fixture
def proxy(s3_port: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FaultyProxy]:
    """A proxy in front of a server with one empty bucket, `s3://bucket`; the environment leads to it."""
    connection = http.client.HTTPConnection("127.0.0.1", s3_port)
    for method, path in (("POST", "/moto-api/reset"), ("PUT", "/bucket")):
        connection.request(method, path)
        connection.getresponse().read()
    connection.close()
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL_S3", "AWS_SESSION_TOKEN", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", S3_SECRET)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    with FaultyProxy(s3_port) as running:
        monkeypatch.setenv("AWS_ENDPOINT_URL", running.url)
        yield running
