"""Paths and URLs: a URL that we cannot read is refused, and never becomes a folder named after its scheme."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cerebras_tensorflow.converter import api
from cerebras_tensorflow.converter.sharded import open_any
from cerebras_tensorflow.converter.torch_writer import TorchWriter
from cerebras_tensorflow.errors import SettingsError
from cerebras_tensorflow.locations import ObjectLocation, local_path, object_location
from cerebras_tensorflow.saver import cli, tf_h5_saver, torch_state
from cerebras_tensorflow.saver.bundle.writer import BundleWriter
from cerebras_tensorflow.saver.checkpoint_reader import CheckpointReader, checkpoints_newest_first, open_checkpoint
from cerebras_tensorflow.saver.checkpoint_writer import open_writer

URL = "hdfs://host/run/model-ckpt-5.h5"

CALLS: dict[str, Callable[[], Any]] = {
    "open_checkpoint": lambda: open_checkpoint(URL),
    "all_checkpoints": lambda: CheckpointReader.all_checkpoints("hdfs://host/run"),
    "is_a_checkpoint": lambda: CheckpointReader.is_a_checkpoint(URL),
    "checkpoints_newest_first": lambda: checkpoints_newest_first(Path("hdfs://host/run")),
    "save": lambda: tf_h5_saver.save(URL, {"w": np.ones(2)}),
    "save shards": lambda: tf_h5_saver.save(URL, {"w": np.ones(2)}, 100),
    "update": lambda: tf_h5_saver.update(URL, {"w": np.ones(2)}),
    "open_writer": lambda: open_writer("swift://box/model.ckpt-5"),
    "bundle": lambda: BundleWriter("s3://bucket/model.ckpt-5"),
    "torch_state": lambda: torch_state.save({"w": np.ones(2)}, URL),
    "torch file": lambda: TorchWriter("hdfs://host/x.mdl"),
    "open_any": lambda: open_any("hdfs://host/model-00001-of-00002.safetensors"),
}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    yield
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
def test_a_url_of_an_unknown_scheme_is_refused_and_makes_no_folder(call: Callable[[], Any]) -> None:
    with pytest.raises(SettingsError, match=r"(s3|swift|hdfs)://? ?.*expected a path or a file:// URL"):
        call()


@pytest.mark.parametrize("command", [cli.tensorflow_to_h5, cli.h5_to_tensorflow])
@pytest.mark.parametrize("words", [[URL, "out"], ["in", URL]])
def test_commands_refuse_a_url_of_an_unknown_scheme(
    command: Callable[[list[str]], int], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(words) == 2
    assert "hdfs:// cannot be read or written here" in capsys.readouterr().err


def test_convert_checkpoint_refuses_an_unknown_scheme_for_its_output(tmp_path_factory: pytest.TempPathFactory) -> None:
    config = tmp_path_factory.mktemp("config") / "config.json"
    config.write_text('{"vocab_size": 9, "n_embd": 4, "n_head": 2, "n_layer": 1, "n_positions": 4}')
    with pytest.raises(SettingsError, match="hdfs://"):
        api.convert_config_from_file("gpt2", "hf", "cs-1.8", str(config), api.Options("hdfs://host/out"))


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("model.ckpt-5", "model.ckpt-5"),
        (b"/run/model.ckpt-5", "/run/model.ckpt-5"),
        (Path("run"), "run"),
        ("file:///data/a%20b", "/data/a b"),
        ("file://localhost/data", "/data"),
        (Path("file:///data"), "/data"),
        ("./s3://x", "./s3://x"),
    ],
)
def test_paths_do_not_change_and_file_urls_become_paths(given: Any, path: str) -> None:
    assert local_path(given) == path


@pytest.mark.parametrize(
    ("given", "location"),
    [
        ("s3://bucket/run/c", ObjectLocation("s3", "bucket", "run/c")),
        (Path("s3://bucket/run/c/"), ObjectLocation("s3", "bucket", "run/c")),
        (b"gs://bucket", ObjectLocation("gs", "bucket", "")),
        ("AZ://account/box/run", ObjectLocation("az", "account/box", "run")),
        ("/run/s3://c", None),
        ("hdfs://host/c", None),
    ],
)
def test_urls_of_object_storage_have_a_container_and_a_key(given: Any, location: ObjectLocation | None) -> None:
    assert object_location(given) == location
    if location is not None:
        assert object_location(str(location)) == location


@pytest.mark.parametrize("url", ["s3://", "s3://bucket//c", "s3://bucket/../c", "gs://./c", "az://account"])
def test_a_url_without_a_container_or_with_relative_parts_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="expected a URL such as"):
        object_location(url)


def test_a_file_url_of_another_host_is_refused() -> None:
    with pytest.raises(SettingsError, match="a file on the host 'server'"):
        local_path("file://server/data")
