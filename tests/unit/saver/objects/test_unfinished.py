"""Uploads in parts that nobody has completed are swept, with requests that this package signs itself."""

from __future__ import annotations

import datetime
import logging
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cerebras_tensorflow.config.env import S3Account
from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.saver import cli
from cerebras_tensorflow.saver.objects.store import Bucket
from cerebras_tensorflow.saver.objects.unfinished import signed_headers, sweep_uploads
from tests.unit.conftest import S3_SECRET
from tests.unit.faulty_proxy import FaultyProxy
from tests.unit.loopback_server import LoopbackServer
from tests.unit.saver.objects.test_objects import place


@pytest.fixture
def client(proxy: FaultyProxy) -> Any:
    return pytest.importorskip("boto3").client("s3", endpoint_url=proxy.url)


def begin(client: Any, key: str) -> None:
    upload = client.create_multipart_upload(Bucket="bucket", Key=key)["UploadId"]
    client.upload_part(Bucket="bucket", Key=key, UploadId=upload, PartNumber=1, Body=b"part")


def unfinished(client: Any) -> list[str]:
    return sorted(one["Key"] for one in client.list_multipart_uploads(Bucket="bucket").get("Uploads", ()))


def test_a_sweep_aborts_uploads_below_its_location(client: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for key in ("run/model 1+\u00fc~.safetensors", "run/b", "running/c"):
        begin(client, key)
    assert cli.inspect(["sweep", "s3://bucket/run", "--older-than", "0", "--dry-run"]) == 0
    assert len(unfinished(client)) == 3
    assert "found the upload of run/b\n" in capsys.readouterr().out
    assert cli.inspect(["sweep", "s3://bucket/run", "--older-than", "0"]) == 0
    assert unfinished(client) == ["running/c"]
    assert capsys.readouterr().out.endswith("aborted 2 uploads that were not completed\n")


@pytest.mark.parametrize("fault", ["throttle", "refuse", "forget"])
def test_a_part_of_a_file_that_fails_is_told_and_the_file_arrives(
    fault: str, client: Any, proxy: FaultyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    content = np.random.default_rng(1).bytes(20 << 20)  # three parts
    (tmp_path / "model.bin").write_bytes(content)
    # Of a part, and twice of one in the second attempt.
    faults = iter([None, None, fault, None, None, None, fault, fault])
    monkeypatch.setattr(proxy, "_next", lambda command: next(faults, None))
    with caplog.at_level(logging.INFO):
        Bucket(place("s3://bucket")).put_file("model.bin", str(tmp_path / "model.bin"))
    assert not list(faults)
    assert client.get_object(Bucket="bucket", Key="model.bin")["Body"].read() == content
    told = [record.getMessage() for record in caplog.records if "model.bin" in record.getMessage()]
    assert len(told) == 1
    assert told[0].startswith("s3://bucket/model.bin: cannot be written: ")
    assert f"Sending {tmp_path}/model.bin again, from its start." in told[0]
    assert S3_SECRET not in caplog.text


def test_a_long_list_is_read_to_its_end_and_young_uploads_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    from cerebras_tensorflow.saver.objects import unfinished as module

    now = datetime.datetime.now(datetime.timezone.utc).isoformat()
    pages = {
        "": "<U><Upload><Key>run/a</Key><UploadId>1</UploadId><Initiated>2020-01-01T00:00:00.000Z</Initiated></Upload>"
        "<IsTruncated>true</IsTruncated><NextKeyMarker>run/a</NextKeyMarker>"
        "<NextUploadIdMarker>1</NextUploadIdMarker></U>",
        "run/a": "<U><Upload><Key>run/b</Key><UploadId>2</UploadId><Initiated>2020-01-01T00:00:00Z</Initiated></Upload>"
        f"<Upload><Key>run/c</Key><UploadId>3</UploadId><Initiated>{now}</Initiated></Upload>"
        "<IsTruncated>false</IsTruncated></U>",
    }
    monkeypatch.setattr(module, "_request", lambda _m, _l, _k, query: pages[query.get("key-marker", "")].encode())
    assert [one.key for one in sweep_uploads(place("s3://bucket"), 3600, is_dry_run=True)] == ["run/a", "run/b"]


def test_an_upload_that_ended_meanwhile_does_not_end_a_sweep(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from cerebras_tensorflow.saver.objects import unfinished as module

    def request(method: str, location: Any, key: str, query: Any) -> bytes:
        if key == "run/b":
            original("DELETE", location, key, query)  # by another sweep
        return original(method, location, key, query)

    original = module._request
    for key in ("run/a", "run/b", "run/c"):
        begin(client, key)
    monkeypatch.setattr(module, "_request", request)
    assert [one.key for one in sweep_uploads(place("s3://bucket/run"), 0)] == ["run/a", "run/c"]
    assert unfinished(client) == []


def test_a_signed_request_follows_no_redirection(monkeypatch: pytest.MonkeyPatch) -> None:
    class Redirecting(LoopbackServer):
        def answer(self, request: BaseHTTPRequestHandler) -> None:
            asked.append(request.path)
            request.send_response(307)
            request.send_header("Location", f"{self.url}/elsewhere")
            request.send_header("Content-Length", "0")
            request.end_headers()

    asked: list[str] = []
    with Redirecting() as server:
        for name, value in (
            ("AWS_ENDPOINT_URL", server.url),
            ("AWS_ACCESS_KEY_ID", "a"),
            ("AWS_SECRET_ACCESS_KEY", "b"),
        ):
            monkeypatch.setenv(name, value)
        with pytest.raises(CheckpointError, match="status code: 307"):
            sweep_uploads(place("s3://bucket/run"), 0)
    assert len(asked) == 1


def test_missing_keys_and_a_server_that_fails_are_named(proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    with pytest.raises(CheckpointError, match=r"neither listed nor removed\. Set AWS_ACCESS_KEY_ID"):
        sweep_uploads(place("s3://bucket/run"), 0)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
    proxy.rate, proxy.faults = 1.0, ("throttle",)
    with pytest.raises(CheckpointError, match=r"cannot be swept: status code: 503") as caught:
        sweep_uploads(place("s3://bucket/run"), 0)
    assert S3_SECRET not in str(caught.value) and "AKIA" not in str(caught.value)


def test_the_signature_is_that_of_the_published_example() -> None:
    account = S3Account("", "us-east-1", "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
    now = datetime.datetime(2013, 5, 24, tzinfo=datetime.timezone.utc)
    headers = signed_headers(account, "GET", "https://examplebucket.s3.amazonaws.com/?lifecycle=", now)
    assert headers["Authorization"].endswith("fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543")


def test_a_request_is_signed_as_amazons_own_client_signs_it() -> None:
    auth = pytest.importorskip("botocore.auth")
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    account = S3Account("", "eu-west-1", "AKIAX", "secret/+x", "token/+=")
    url = "http://127.0.0.1:9/bucket/run/%C3%BC%20%281%29%2Bx/y~.bin?uploadId=ab%2Fc%3D%2Bd"
    theirs = AWSRequest(method="DELETE", url=url)
    auth.S3SigV4Auth(Credentials(account.key_id, account.secret, account.token), "s3", account.region).add_auth(theirs)
    signed_at = datetime.datetime.strptime(theirs.headers["X-Amz-Date"], "%Y%m%dT%H%M%SZ")
    ours = signed_headers(account, "DELETE", url, signed_at)
    assert ours["Authorization"].rpartition("=")[2] == theirs.headers["Authorization"].rpartition("=")[2]


def test_a_server_without_this_request_does_not_fail_a_sweep(
    proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from cerebras_tensorflow.saver.objects import unfinished as module

    def refuse(*_: object) -> bytes:
        raise CheckpointError("not here")

    monkeypatch.setattr(module, "_request", refuse)
    assert cli.inspect(["sweep", "s3://bucket/run"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "0 objects, 0 B\n"
    assert printed.err == "cs-checkpoint sweep: warning: not here\n"
