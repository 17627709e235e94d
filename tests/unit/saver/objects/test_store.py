"""Buckets of gs and az, and what errors say."""

from __future__ import annotations

import datetime
import itertools
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.locations import object_location
from cerebras_tensorflow.saver.objects import failures
from cerebras_tensorflow.saver.objects import store as store_module
from cerebras_tensorflow.saver.objects.store import Bucket
from tests.unit.faulty_proxy import FaultyProxy
from tests.unit.gcs_server import GcsServer

obstore = pytest.importorskip("obstore")


def bucket_of(url: str) -> Bucket:
    location = object_location(url)
    assert location is not None
    return Bucket(location)


@pytest.fixture
def gcs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """A bucket of gs on loopback, empty."""
    with GcsServer() as server:
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", server.service_account)
        yield bucket_of("gs://bucket/run")


def test_an_az_url_names_account_and_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "another")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")
    bucket = bucket_of("az://account/container/run/step20")
    url = obstore.sign(bucket._store, "GET", "run/step20/manifest.json", datetime.timedelta(minutes=1))
    assert url.startswith("https://account.blob.core.windows.net/container/run/step20/manifest.json?")
    assert bucket.url("run") == "az://account/container/run"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Authorization: Bearer ya29.HIDDEN\nHost: h", "Authorization: ... Host: h"),
        ("authorization=AWS4-HMAC-SHA256 Credential=HIDDEN/s3, Signature=HIDDEN", "authorization=..."),
        ("Proxy-Authorization: Basic HIDDEN", "Proxy-Authorization: ..."),
        ("sent bearer HIDDEN, then", "sent bearer ..., then"),
        (
            "<Error><AWSAccessKeyId>HIDDEN</AWSAccessKeyId><RequestId>7</RequestId></Error>",
            "<Error><AWSAccessKeyId>...</AWSAccessKeyId><RequestId>7</RequestId></Error>",
        ),
        (
            "<CanonicalRequest>PUT\nx-amz-security-token:HIDDEN\n\nhost</CanonicalRequest>",
            "<CanonicalRequest>...</CanonicalRequest>",
        ),
        ("<Token-0>HIDDEN</Token-0><Key>run/c</Key>", "<Token-0>...</Token-0><Key>run/c</Key>"),
        ("<StringToSign>HIDDEN cut", "<StringToSign>..."),
        ('{"x-token": "HIDDEN HIDDEN", "host": "h"}', '{"x-token": "...", "host": "h"}'),
        ('body: "{\\"access_token\\": \\"HIDDEN\\", \\"n\\": 1}"', 'body: "{\\"access_token\\": "...", \\"n\\": 1}"'),
        ('"private_key": "-----BEGIN KEY-----\\nHIDDEN"', '"private_key": "..."'),
        ("'authorization': 'Bearer HIDDEN'", "'authorization': '...'"),
        ("x-amz-security-token: HIDDEN", "x-amz-security-token: ..."),
        ("GET https://a.net/c?sv=1&sig=HIDDEN%3D&se=2", "GET https://a.net/c?sv=1&sig=...&se=2"),
        ("GET https://s/b?X-Goog-Credential=HIDDEN&x=1", "GET https://s/b?X-Goog-Credential=...&x=1"),
        ("aws_secret_access_key = HIDDEN", "aws_secret_access_key = ..."),
        ("AccountKey=HIDDEN;x", "AccountKey=..."),
        ("the key AKIAHIDDEN7 of ya29.HIDDEN-x", "the key ... of ..."),
        (
            "Error performing token request: GET http://h/token in 2ms",
            "Error performing token request: GET http://h/token in 2ms",
        ),
    ],
)
def test_errors_are_shown_without_credentials(text: str, shown: str) -> None:
    assert failures.without_credentials(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "HTTP error: GET https://h/bucket/run/data-18c403ab-00001 error decoding response body",
        "GET https://h/dns/region/PermanentRedirect/403 - operation timed out",
        "Request failed for path 403 region dns/c: body: <Key>status 403</Key> connection closed",
    ],
)
def test_advice_does_not_depend_on_names(text: str) -> None:
    assert failures.advice(OSError(text), "403 region dns/c") == failures.TRY_AGAIN


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("GET http://h/c in 2ms - Server returned non-2xx status code: 403 Forbidden: ", "The credentials are"),
        ("Error performing HEAD http://h/c - Client error with status 403 Forbidden: No Body", "The credentials are"),
        ("status 301: <Code>PermanentRedirect</Code>", "The bucket is in another region"),
        (
            "Received redirect without LOCATION, this normally indicates an incorrectly configured region",
            "The bucket is",
        ),
        ("GET http://h/c - HTTP error: error sending request", "Nothing answers there"),
        ("status code: 403 Forbidden: <Code>RequestTimeTooSkewed</Code>", "The clock of this machine differs"),
        ("status 400: <Code>ExpiredToken</Code>", "The credentials have expired"),
        ("Server returned non-2xx status code: 501 Not Implemented", "The server does not support this request"),
    ],
)
def test_advice_depends_on_what_the_server_said(text: str, advice: str) -> None:
    assert failures.advice(OSError(text), "c").startswith(advice)


def test_a_file_of_a_terabyte_is_sent_in_few_parts(
    gcs: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sent: dict[str, int] = {}
    monkeypatch.setattr(gcs._obstore, "put", lambda *_, **options: sent.update(options))
    with open(tmp_path / "model", "wb") as file:
        file.truncate(1 << 40)  # takes no space
    gcs.put_file("run/model", str(tmp_path / "model"))
    assert -(-(1 << 40) // sent["chunk_size"]) <= 10_000
    assert sent["chunk_size"] * sent["max_concurrency"] <= 128 << 20


CUT = "HTTP error: https://h/b/data-18c403ab-00001: error decoding response body"


@pytest.mark.parametrize(("limit_s", "num_calls"), [(180, store_module._ATTEMPTS), (0, 1)])
def test_a_cut_answer_is_read_again_for_a_bounded_time_whatever_its_name(
    gcs: Bucket, limit_s: int, num_calls: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(store_module, "_FIRST_PAUSE_MS", 0.01)
    monkeypatch.setattr(store_module, "_RETRY_TIMEOUT_S", limit_s)
    caplog.set_level(logging.INFO)
    calls = []

    def cut(*words: object, **options: object) -> None:
        calls.append(words)
        raise obstore.exceptions.GenericError(CUT)

    monkeypatch.setattr(obstore, "get_range", cut)
    with pytest.raises(CheckpointError, match="Try again"):
        gcs.get_range("run/data-18c403ab-00001", 0, 4)
    assert len(calls) == num_calls
    assert len(caplog.records) == num_calls - 1
    assert [record.levelname for record in caplog.records[:2]] == ["INFO", "WARNING"][: num_calls - 1]


def test_a_listing_that_fails_goes_on_behind_the_last_object(gcs: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_FIRST_PAUSE_MS", 0.01)
    keys = [f"run/{number}" for number in range(7)]
    for key in keys:
        gcs.put(key, b"x")
    whole, offsets = obstore.list, []

    def failing(*words: Any, offset: str | None = None, **options: Any) -> Iterator[Any]:
        offsets.append(offset)
        yield next(iter(whole(*words, offset=offset, **options, chunk_size=3)))
        raise obstore.exceptions.GenericError(CUT)

    monkeypatch.setattr(obstore, "list", failing)
    assert [item.key for item in itertools.islice(gcs.list("run"), 7)] == keys
    assert offsets == [None, "run/2", "run/5"]


def test_a_request_without_an_answer_ends_and_is_repeated(
    proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(store_module, "_REQUEST_TIMEOUT_S", 0.2)
    bucket = bucket_of("s3://bucket/run")
    bucket.put("run/c", b"x")
    proxy.rate, proxy.faults, proxy.delay_s = 0.5, ("delay",), 0.5
    caplog.set_level(logging.INFO)
    assert [bytes(bucket.get_range("run/c", 0, 1)) for _ in range(3)] == [b"x"] * 3
    assert "Attempt 2 of" in caplog.text


@pytest.mark.parametrize(("scheme", "variable"), [("s3", "AWS_ACCESS_KEY_ID"), ("gs", "GOOGLE_SERVICE_ACCOUNT_KEY")])
def test_incomplete_keys_are_named(
    scheme: str, variable: str, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv(variable, "{}")
    with pytest.raises(CheckpointError, match="Settings are missing or wrong: set AWS_ACCESS_KEY_ID and"):
        bucket_of(f"{scheme}://bucket/run")
