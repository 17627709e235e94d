"""The same behaviour for s3://, gs:// and az://; for az:// with Azurite (npm install azurite), if it is installed."""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.locations import object_location
from cerebras_tensorflow.saver import cli, tf_h5_saver, torch_state
from cerebras_tensorflow.saver.bundle.writer import BundleWriter
from cerebras_tensorflow.saver.checkpoint_reader import CheckpointReader, open_checkpoint
from cerebras_tensorflow.saver.checkpoint_writer import open_writer
from cerebras_tensorflow.saver.objects.store import Bucket, ConflictError
from tests.unit.gcs_server import GcsServer

pytest.importorskip("obstore")

_ACCOUNT, _VERSION = "devstoreaccount1", "2021-08-06"
# The key that Azurite publishes for its only account.
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@pytest.fixture(params=["s3", "gs", "az"])
def base(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """URL of an empty container; the environment leads to its server."""
    if request.param == "s3":
        request.getfixturevalue("proxy")
        yield "s3://bucket"
    elif request.param == "gs":
        with GcsServer() as server:
            monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", server.service_account)
            yield "gs://bucket"
    else:
        yield from _azurite(monkeypatch, tmp_path)


def _azurite(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[str]:
    program = shutil.which("azurite-blob")
    if program is None:
        pytest.skip("azurite-blob is not on the PATH: npm install azurite")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    options = ["--blobHost", "127.0.0.1", "--blobPort", port, "--location", str(folder / "azurite")]
    server = subprocess.Popen([program, *options, "--skipApiVersionCheck", "--silent", "--disableTelemetry"])
    endpoint = f"http://127.0.0.1:{port}/{_ACCOUNT}"
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", endpoint)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", _KEY)
    try:
        _make_container(endpoint)
        yield f"az://{_ACCOUNT}/bucket"
    finally:
        server.terminate()
        server.wait()


def _make_container(endpoint: str) -> None:
    """Make a container, as soon as the server answers: obstore cannot."""
    headers = {"x-ms-date": email.utils.formatdate(usegmt=True), "x-ms-version": _VERSION, "Content-Length": "0"}
    signed = "PUT" + "\n" * 12 + f"x-ms-date:{headers['x-ms-date']}\nx-ms-version:{_VERSION}\n"
    signed += f"/{_ACCOUNT}/{_ACCOUNT}/bucket\nrestype:container"
    signature = hmac.new(base64.b64decode(_KEY), signed.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {_ACCOUNT}:{base64.b64encode(signature).decode()}"
    for attempt in range(100):
        request = urllib.request.Request(f"{endpoint}/bucket?restype=container", method="PUT", headers=headers)
        try:
            urllib.request.urlopen(request).close()
            return
        except urllib.error.HTTPError:
            raise
        except urllib.error.URLError:  # it has not started yet
            if attempt == 99:
                raise
            time.sleep(0.1)


def bucket_of(base: str) -> Bucket:
    location = object_location(base)
    assert location is not None
    return Bucket(location)


def test_objects_are_written_conditionally_listed_and_removed(base: str) -> None:
    bucket = bucket_of(base)
    assert bucket.get("run/a") is None and bucket.size("run/a") is None and bucket.version("run/a") is None
    bucket.put_if("run/a", b"1", None)
    with pytest.raises(ConflictError):
        bucket.put_if("run/a", b"2", None)
    first = bucket.get("run/a")
    assert first is not None
    bucket.put_if("run/a", b"22", first[1])
    for replaced in (None, first[1]):
        with pytest.raises(ConflictError):
            bucket.put_if("run/a", b"3", replaced)
    for number in range(5):
        bucket.put(f"run/c{number}/x y+z", b"hello world")
    assert bytes(bucket.get_range("run/c1/x y+z", 3, 4)) == b"lo w"
    with pytest.raises(CheckpointError):
        bucket.get_range("run/none", 0, 4)
    found = {item.key: item.size for item in bucket.list("run")}
    assert found == {"run/a": 2, **{f"run/c{number}/x y+z": 11 for number in range(5)}}
    folders, names = bucket.children("run")
    assert (sorted(folders), sorted(names)) == ([f"c{number}" for number in range(5)], ["a"])
    bucket.delete([*found, "run/none"])
    assert list(bucket.list("run")) == []


def test_checkpoints_and_every_command_take_the_scheme(
    base: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, file = f"{base}/run/model-ckpt-5", str(tmp_path / "model.ckpt-5")
    values = {"w": np.arange(1_100_000, dtype=np.float32).reshape(-1, 100), "step": np.int64(5)}
    with BundleWriter(file) as writer:
        for name, value in values.items():
            writer.add(name, value)
    assert cli.tensorflow_to_h5([file, url, "--verify"]) == 0
    assert cli.h5_to_tensorflow([url, f"{base}/run/copy-6", "--verify"]) == 0
    assert cli.tensorflow_to_h5([url, str(tmp_path / "back.h5")]) == 0
    assert cli.inspect([f"{base}/run/copy-6", "--diff", str(tmp_path / "back.h5"), "--verify"]) == 0
    with open_checkpoint(url) as reader:
        assert reader.read_slice("w", 7, 9).tolist() == values["w"][7:9].tolist()
    torch_state.save({"a": [1, None]}, f"{base}/state")
    assert torch_state.load(f"{base}/state") == {"a": [1, None]}
    assert CheckpointReader.all_checkpoints(f"{base}/run") == [url]
    first, second = open_writer(url), open_writer(url)
    for writer_of_one, number in ((first, 1), (second, 2)):
        writer_of_one.add("w", np.full(4, number))
    first.commit()
    with pytest.raises(CheckpointError, match="another process has written this checkpoint meanwhile"):
        second.commit()
    assert tf_h5_saver.load(url)["w"].tolist() == [1] * 4
    bucket_of(base).put("run/gone/data-1a-00003", b"left")
    capsys.readouterr()
    assert cli.inspect(["sweep", f"{base}/run", "--older-than", "0"]) == 0
    assert capsys.readouterr().out.endswith("1 objects, 4 B\n")
    assert tf_h5_saver.load(url)["w"].tolist() == [1] * 4
