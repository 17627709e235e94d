"""The converter refuses hostile files with a message, in bounded time and memory, and runs nothing in them."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest

from cerebras_tensorflow.converter import api
from cerebras_tensorflow.converter.rules import ConfigConversionError
from cerebras_tensorflow.converter.sharded import open_any
from cerebras_tensorflow.converter.torch_file import TorchReader
from cerebras_tensorflow.errors import CheckpointError, CorruptCheckpointError

DEPTH = 60


def torch_file(path: Path, content: bytes, compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("archive/data.pkl", content)
    return path


def nested() -> list[Any]:
    """Lists of DEPTH levels, each twice in the next one: a walk has 2^DEPTH steps."""
    value: list[Any] = []
    for _ in range(DEPTH):
        value = [value, value]
    return value


def test_exponentially_nested_lists_are_refused(tmp_path: Path) -> None:
    path = torch_file(tmp_path / "x.bin", pickle.dumps({"a": nested()}, 2))
    with pytest.raises(CorruptCheckpointError, match="refer to each other more often"):
        TorchReader(path)


def test_keys_with_exponential_hash_time_are_refused(tmp_path: Path) -> None:
    # ((), ()) and so on, each level twice in the next, as the key of {}.
    levels = b"".join(b"q" + bytes([level]) + b"h" + bytes([level]) + b"\x86" for level in range(DEPTH))
    path = torch_file(tmp_path / "x.bin", b"\x80\x02})" + levels + b"Ns.")
    with pytest.raises(CorruptCheckpointError, match="key is a tuple"):
        TorchReader(path)


def test_a_large_memo_index_allocates_no_memory(tmp_path: Path) -> None:
    path = torch_file(tmp_path / "x.bin", b"\x80\x02}r\xff\xff\xff\x7f.")
    with TorchReader(path) as reader:
        assert reader.names() == []


def test_deep_nesting_of_long_names_is_refused(tmp_path: Path) -> None:
    key = "k" * 100_000
    content: Any = {}
    for _ in range(50):
        content = {key: content}
    with pytest.raises(CorruptCheckpointError, match="refer to each other more often"):
        TorchReader(torch_file(tmp_path / "x.bin", pickle.dumps(content, 2)))


def test_a_long_name_above_many_objects_is_refused(tmp_path: Path) -> None:
    content = {"k" * 4000: [[0] * 100] * 60}  # the inner list is in the pickle once
    with pytest.raises(CorruptCheckpointError, match="refer to each other more often"):
        TorchReader(torch_file(tmp_path / "x.bin", pickle.dumps(content, 2)))


def test_a_pickle_that_sets_attributes_of_our_functions_is_refused(tmp_path: Path) -> None:
    content = b"\x80\x02ctorch\nSize\nN}X\x0c\x00\x00\x00__defaults__(I7\ntss\x86b."
    with pytest.raises(CorruptCheckpointError, match="not a file of torch"):
        TorchReader(torch_file(tmp_path / "x.bin", content))


def test_compressed_members_are_refused(tmp_path: Path) -> None:
    path = torch_file(tmp_path / "x.bin", pickle.dumps({"a": "x" * 1_000_000}, 2), zipfile.ZIP_DEFLATED)
    with pytest.raises(CheckpointError, match=r"compressed, which torch\.save never does"):
        TorchReader(path)


def test_a_sharded_index_that_is_nested_deeply_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.bin.index.json"
    path.write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match="not the index of a sharded checkpoint"):
        open_any(path)


@pytest.mark.parametrize("second", ["the same name", "no checkpoint"])
def test_shards_that_do_not_fit_are_refused_and_none_stays_open(tmp_path: Path, second: str) -> None:
    shards = [tmp_path / f"m-0000{number}-of-00002.safetensors" for number in (1, 2)]
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    for shard in shards:
        shard.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    if second == "no checkpoint":
        shards[1].write_bytes(b"nothing")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(CheckpointError, match=r"w is in .*00001.* and in .*00002" if "same" in second else "00002"):
        open_any(shards[0])
    assert len(os.listdir("/proc/self/fd")) == before


LAUGHS = "a0: &a0 [1, 1]\n" + "".join(f"a{n + 1}: &a{n + 1} [*a{n}, *a{n}]\n" for n in range(DEPTH))


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("hf", "[" * 100_000),
        ("hf", json.dumps({"n_layer": 2})[:-1] + ', "x": ' + "[" * 150 + "]" * 150 + "}" + "]" * 10),
        ("cs-1.8", "[" * 100_000),
        ("cs-1.8", "model: {" + "a: {" * 100_000),
        ("cs-1.8", LAUGHS + f"model:\n  hidden_size: *a{DEPTH}\n"),
        ("cs-1.8", "model: \x00"),
    ],
    ids=["json", "json with a rest", "yaml list", "yaml dict", "yaml references", "NUL"],
)
def test_deeply_nested_configs_are_refused(tmp_path: Path, source: str, text: str) -> None:
    (tmp_path / "config").write_text(text)
    with pytest.raises(ConfigConversionError, match="config"):
        api.read_config(str(tmp_path / "config"), source)


def test_a_config_that_is_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigConversionError, match="Is a directory"):
        api.read_config(str(tmp_path), "hf")
