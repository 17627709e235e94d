"""Files of torch.save are written and read without torch, and no code in a file is ever run."""

from __future__ import annotations

import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from cerebras_tensorflow.converter.torch_file import Leaf, TorchReader
from cerebras_tensorflow.converter.torch_writer import TorchWriter
from cerebras_tensorflow.errors import CheckpointError, CorruptCheckpointError

VALUES = {
    "a.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "b": np.array(7, np.int64),
    "empty": np.zeros([0, 3], np.float16),
    "half": np.array([1.5, -2.0], ml_dtypes.bfloat16),
    "flag": np.array([True, False]),
}


def write(path: Path, key: str | None = None) -> None:
    with TorchWriter(path, key) as writer:
        for name, value in VALUES.items():
            writer.add(name, value)


@pytest.mark.parametrize("key", [None, "model"])
def test_what_is_written_is_read_back(tmp_path: Path, key: str | None) -> None:
    write(tmp_path / "x.bin", key)
    prefix = f"{key}." if key else ""
    with TorchReader(tmp_path / "x.bin") as reader:
        assert reader.names() == sorted(prefix + name for name in VALUES)
        reader.check_complete()
        assert reader.verify() == sum(value.nbytes for value in VALUES.values())
        for name, value in VALUES.items():
            content = reader.read(prefix + name)
            assert (content.dtype, content.shape) == (value.dtype, value.shape)
            np.testing.assert_array_equal(content, value)


class Runs:
    """Makes a folder when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.path),)


def test_a_pickle_that_calls_a_function_is_refused_and_not_run(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.bin", "w") as file:
        file.writestr("archive/data.pkl", pickle.dumps({"a": Runs(tmp_path / "made")}, protocol=2))
    with pytest.raises(CheckpointError, match=r"calls \w+\.mkdir.*not run"):
        TorchReader(tmp_path / "x.bin")
    assert not (tmp_path / "made").exists()


def test_the_format_before_torch_1_6_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2))
    with pytest.raises(CheckpointError, match="format before torch"):
        TorchReader(tmp_path / "x.bin")


def test_a_file_cut_short_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "x.bin")
    content = (tmp_path / "x.bin").read_bytes()
    (tmp_path / "x.bin").write_bytes(content[: len(content) // 2])
    with pytest.raises(CorruptCheckpointError, match="damaged"):
        TorchReader(tmp_path / "x.bin")


def test_a_damaged_value_is_found(tmp_path: Path) -> None:
    write(tmp_path / "x.bin")
    content = bytearray((tmp_path / "x.bin").read_bytes())
    place = content.index(struct.pack("<4f", 0, 1, 2, 3))
    content[place] ^= 1
    (tmp_path / "x.bin").write_bytes(content)
    with TorchReader(tmp_path / "x.bin") as reader, pytest.raises(CorruptCheckpointError, match="checksum"):
        reader.verify()


@pytest.mark.parametrize(
    ("in_directory", "place", "value"),
    [
        *((True, 8, struct.pack("<H", flag)) for flag in (0x01, 0x20, 0x40)),
        *((True, 42, struct.pack("<I", offset)) for offset in (1_000_000, 2**32 - 2)),
        (True, 24, struct.pack("<I", 2**32 - 1)),  # a size in an extra field that does not exist
        (False, 30, b"\xff\xff"),
        (False, 26, struct.pack("<H", 60_000)),
    ],
)
def test_an_odd_header_of_a_member_is_refused(in_directory: bool, place: int, value: bytes, tmp_path: Path) -> None:
    write(tmp_path / "x.bin")
    content = bytearray((tmp_path / "x.bin").read_bytes())
    start = content.index(b"PK\1\2") if in_directory else 0
    flags = content.index(b"PK\1\2") + 8
    if not in_directory:
        content[flags : flags + 2] = struct.pack("<H", 0x800)  # names are UTF-8
    content[start + place : start + place + len(value)] = value
    (tmp_path / "x.bin").write_bytes(content)
    with pytest.raises(CorruptCheckpointError), TorchReader(tmp_path / "x.bin") as reader:
        reader.verify()


def test_two_members_of_one_name_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "x.bin")
    content = (tmp_path / "x.bin").read_bytes()
    (tmp_path / "x.bin").write_bytes(content.replace(b"archive/data/1", b"archive/data/0"))
    with pytest.raises(CorruptCheckpointError, match="two of its members have one name"):
        TorchReader(tmp_path / "x.bin")


def test_a_member_far_outside_of_the_file_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "x.bin")
    content = bytearray((tmp_path / "x.bin").read_bytes())
    start, end = content.index(b"PK\1\2"), content.rindex(b"PK\5\6")
    name_bytes = struct.unpack_from("<H", content, start + 28)[0]
    struct.pack_into("<I", content, start + 42, 2**32 - 1)
    struct.pack_into("<H", content, start + 30, 12)
    struct.pack_into("<I", content, end + 12, end - start + 12)
    content[start + 46 + name_bytes : start + 46 + name_bytes] = struct.pack("<HHQ", 1, 8, 2**63 + 5)
    (tmp_path / "x.bin").write_bytes(content)
    with (
        pytest.raises(CorruptCheckpointError, match="does not fit the file"),
        TorchReader(tmp_path / "x.bin") as reader,
    ):
        reader.check_complete()


def test_a_tensor_that_reaches_past_its_storage_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "x.bin")
    with zipfile.ZipFile(tmp_path / "x.bin") as file:
        members = {name: file.read(name) for name in file.namelist()}
    members["archive/data/0"] = members["archive/data/0"][:-4]
    with zipfile.ZipFile(tmp_path / "y.bin", "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    with TorchReader(tmp_path / "y.bin") as reader, pytest.raises(CorruptCheckpointError, match="reaches past"):
        reader.read("a.weight")


def place(*numbers: int) -> bytes:
    """A tuple of numbers as TorchWriter pickles it."""
    return b"(" + b"".join(b"J" + struct.pack("<i", number) for number in numbers) + b"t"


def with_pickle(path: Path, change: Callable[[bytes], bytes]) -> Path:
    """Write the file if it is missing, replace its pickle, and return its path."""
    if not path.exists():
        write(path)
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(name, change(content) if name.endswith("data.pkl") else content)
    return path


@pytest.mark.parametrize(
    ("shape", "strides", "message"),
    [
        ((3, 4), (100_000_000, -100_000_000), "not those of a tensor"),  # would be read outside of its storage
        ((3, -4), (4, 1), "not those of a tensor"),
        ((3, 4), (4,), "not those of a tensor"),
        ((2**31 - 1, 2**31 - 1), (0, 0), "share memory"),  # would take 18 EB
    ],
)
def test_a_place_outside_of_the_storage_is_refused(
    shape: tuple[int, ...], strides: tuple[int, ...], message: str, tmp_path: Path
) -> None:
    old, new = place(3, 4) + place(4, 1), place(*shape) + place(*strides)
    path = with_pickle(tmp_path / "x.bin", lambda content: content.replace(old, new))
    with pytest.raises(CheckpointError, match=message):
        TorchReader(path)


def test_a_damaged_pickle_raises_only_our_error(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    write(tmp_path / "x.bin")
    with zipfile.ZipFile(tmp_path / "x.bin") as file:
        whole = file.read("archive/data.pkl")

    def damaged(_content: bytes) -> bytes:
        values = np.frombuffer(whole, np.uint8).copy()
        values[rng.integers(0, len(values), 3)] = rng.integers(0, 256, 3)
        return values.tobytes()

    for _ in range(200):
        # The pickle may still be valid after a change; otherwise only our error may be raised.
        with suppress(CheckpointError), TorchReader(with_pickle(tmp_path / "x.bin", damaged)) as reader:
            for name in reader.names():
                reader.read(name)


def test_a_pickle_without_end_is_refused(tmp_path: Path) -> None:
    itself = b"\x80\x02}q\x00X\x01\x00\x00\x00ah\x00s."  # a dict that holds itself
    with pytest.raises(CorruptCheckpointError, match="damaged"):
        TorchReader(with_pickle(tmp_path / "x.bin", lambda _content: itself))


def test_a_writer_left_by_an_exception_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), TorchWriter(tmp_path / "x.bin") as writer:
        writer.add("a", np.zeros(3, np.float32))
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_an_add_of_the_wrong_size_or_twice_is_refused(tmp_path: Path) -> None:
    with TorchWriter(tmp_path / "x.bin") as writer:
        writer.add("a", np.zeros(3, np.float32))
        with pytest.raises(ValueError, match="is added twice"):
            writer.add("a", np.zeros(3, np.float32))
        with pytest.raises(ValueError, match="cannot hold"):
            writer.add("c", np.zeros(3, np.complex64))


def test_nested_content_is_read_back_unchanged(tmp_path: Path) -> None:
    tree = {
        "model": {"w": Leaf("w")},
        "optimizer": {
            "state": {0: {"exp_avg": Leaf("m"), "step": 7}},
            "param_groups": [{"lr": 0.1, "betas": (0.9, 1)}],
        },
        "global_step": 2**40,
        "low": -(2**40),
        "name": "run",
        "flags": [True, False, None],
    }
    with TorchWriter(tmp_path / "a.mdl", tree=tree) as writer:
        writer.add("w", np.arange(3, dtype=np.float32))
        writer.add("m", np.ones([2, 2], np.float16))
    with TorchReader(tmp_path / "a.mdl") as reader:
        leaves = {"w": "model.w", "m": "optimizer.state.0.exp_avg"}

        def named(value: object) -> object:
            if isinstance(value, Leaf):
                return Leaf(leaves[value.name])
            if isinstance(value, dict):
                return {key: named(item) for key, item in value.items()}
            return type(value)(map(named, value)) if isinstance(value, (list, tuple)) else value

        assert reader.tree == named(tree)
        np.testing.assert_array_equal(reader.read("model.w"), [0, 1, 2])
