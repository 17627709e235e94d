"""Buckets of gs and az, and what errors say."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path

import pytest

from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.locations import object_location
from cerebras_tensorflow.saver.objects import store as store_module
from cerebras_tensorflow.saver.objects.store import Bucket, without_credentials
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
    assert without_credentials(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "HTTP error: GET https://h/bucket/run/data-18c403ab-00001 error decoding response body",
        "GET https://h/dns/region/PermanentRedirect/403 - operation timed out",
        "Request failed for path 403 region dns/c: body: <Key>status 403</Key> connection closed",
    ],
)
def test_advice_does_not_depend_on_names(text: str) -> None:
    assert store_module._advice(OSError(), text, "403 region dns/c") == store_module._TRY_AGAIN


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
    ],
)
def test_advice_depends_on_what_the_server_said(text: str, advice: str) -> None:
    assert store_module._advice(OSError(), text, "c").startswith(advice)


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


def test_a_cut_answer_is_read_again_whatever_its_name(gcs: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_FIRST_PAUSE_MS", 1)
    calls = []

    def cut(*words: object, **options: object) -> None:
        calls.append(words)
        raise obstore.exceptions.GenericError(
            "HTTP error: https://h/b/data-18c403ab-00001: error decoding response body"
        )

    monkeypatch.setattr(obstore, "get_range", cut)
    with pytest.raises(CheckpointError, match="Try again"):
        gcs.get_range("run/data-18c403ab-00001", 0, 4)
    assert len(calls) == store_module._ATTEMPTS
