"""tensor_bundle: bit-exact round trips, detection of damage, and no partial files."""

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebras_tensorflow.errors import CheckpointError, CorruptCheckpointError
from cerebras_tensorflow.saver.bundle import format as bundle_format
from cerebras_tensorflow.saver.bundle.reader import BundleReader
from cerebras_tensorflow.saver.bundle.writer import BundleWriter

DTYPES = [
    *(np.dtype(kind) for kind in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?", "c8", "c16")),
    *(np.dtype(kind) for kind in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.int4)),
]


def write(prefix: Path, tensors: dict[str, Any]) -> None:
    with BundleWriter(prefix) as writer:
        for name, value in tensors.items():
            writer.add(name, value)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_comes_back_to_the_last_bit(tmp_path: Path, dtype: np.dtype[Any]) -> None:
    raw = np.random.default_rng(1).integers(0, 2 if dtype.kind == "b" else 256, 24 * dtype.itemsize, np.uint8)
    value = raw.view(dtype).reshape(2, 3, 4)
    write(tmp_path / "c", {"x": value})
    with BundleReader(tmp_path / "c") as reader:
        back = reader.read("x")
        assert reader.entry("x").num_bytes == value.nbytes
    assert back.dtype == dtype
    assert back.tobytes() == value.tobytes()


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,) * 8, (2, 1, 3, 1, 2, 1, 2, 2)], ids=str)
def test_every_rank_and_empty_tensors_come_back(tmp_path: Path, shape: tuple[int, ...]) -> None:
    value = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    write(tmp_path / "c", {"x": value})
    with BundleReader(tmp_path / "c") as reader:
        assert reader.read("x").shape == shape
        np.testing.assert_array_equal(reader.read("x"), value)
        assert reader.verify() == value.nbytes


@settings(deadline=None, max_examples=40)
@given(st.dictionaries(st.text(min_size=1).filter(lambda name: "\0" not in name), st.integers(0, 2**62), min_size=1))
def test_any_unicode_name_comes_back(tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, int]) -> None:
    tensors = {name: value for name, value in tensors.items() if not any("\ud800" <= c <= "\udfff" for c in name)}
    folder = tmp_path_factory.mktemp("names")
    write(folder / "c", tensors)
    with BundleReader(folder / "c") as reader:
        assert {name: int(reader.read(name)) for name in reader.names()} == tensors


def test_big_endian_and_strided_arrays_are_stored_by_value(tmp_path: Path) -> None:
    value = np.arange(12, dtype=">i4").reshape(3, 4).T
    write(tmp_path / "c", {"x": value})
    with BundleReader(tmp_path / "c") as reader:
        np.testing.assert_array_equal(reader.read("x"), value)


def test_chunks_of_any_size_make_one_tensor(tmp_path: Path) -> None:
    data = bytes(range(200)) * 4
    with BundleWriter(tmp_path / "c") as writer:
        writer.add_chunks("x", np.float32, (2, 100), [data[:3], b"", memoryview(data)[3:500], bytearray(data[500:])])
    with BundleReader(tmp_path / "c") as reader:
        assert reader.read("x").tobytes() == data
        buffer = bytearray(800)
        reader.read_into("x", buffer)
        assert bytes(buffer) == data
        assert reader.read_slice("x", 1, 2).tobytes() == data[400:]
        with pytest.raises(ValueError, match="has 800 bytes, the buffer 799"):
            reader.read_into("x", bytearray(799))


@pytest.mark.parametrize("size", [7, 9])
def test_chunks_of_a_wrong_total_leave_nothing(tmp_path: Path, size: int) -> None:
    with pytest.raises(ValueError, match="x: the chunks hold"), BundleWriter(tmp_path / "c") as writer:
        writer.add_chunks("x", np.float32, (2,), [b"\0" * size])
    assert os.listdir(tmp_path) == []


def test_a_name_added_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'x' is added twice"), BundleWriter(tmp_path / "c") as writer:
        writer.add("x", 1)
        writer.add("x", 2)
    assert os.listdir(tmp_path) == []


def test_a_type_that_tensorflow_lacks_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(ValueError, match="cannot hold elements of type datetime64"),
        BundleWriter(tmp_path / "c") as writer,
    ):
        writer.add("x", np.zeros(2, "M8[s]"))


def test_tensors_go_to_the_shards_that_the_caller_chooses(tmp_path: Path) -> None:
    with BundleWriter(tmp_path / "c", shard_of=lambda name, num_bytes: int(name[-1])) as writer:
        for number in range(3):
            writer.add(f"w{number}", np.full(4, number, np.int32))
    assert sorted(os.listdir(tmp_path)) == [f"c.data-0000{k}-of-00003" for k in range(3)] + ["c.index"]
    os.unlink(tmp_path / "c.data-00001-of-00003")
    with BundleReader(tmp_path / "c") as reader:
        assert reader.read("w2").tolist() == [2] * 4
        with pytest.raises(CorruptCheckpointError, match=r"c\.data-00001-of-00003.*No such file"):
            reader.check_complete()


def test_a_checkpoint_stays_readable_until_its_replacement_is_committed(tmp_path: Path) -> None:
    write(tmp_path / "c", {"x": 1})
    writer = BundleWriter(tmp_path / "c")
    writer.add("x", 2)
    with BundleReader(tmp_path / "c") as reader:
        assert reader.read("x") == 1
    writer.commit()
    with BundleReader(tmp_path / "c") as reader:
        assert reader.read("x") == 2
    assert sorted(os.listdir(tmp_path)) == ["c.data-00000-of-00002", "c.index"]


def test_every_flipped_byte_is_found(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    write(tmp_path / "c", {"a": rng.random(50), "b": np.array([b"text", b""], object), "c": rng.random((3, 7))})
    data_name, index_name = sorted(os.listdir(tmp_path))
    for name in (data_name, index_name):
        original = (tmp_path / name).read_bytes()
        for position in range(len(original)):
            damaged = bytearray(original)
            damaged[position] ^= 1 << (position % 8)
            (tmp_path / name).write_bytes(damaged)
            with pytest.raises(CheckpointError), BundleReader(tmp_path / "c") as reader:
                reader.verify()
        (tmp_path / name).write_bytes(original)
    with BundleReader(tmp_path / "c") as reader:
        reader.verify()


def test_a_truncated_file_is_found_without_reading_values(tmp_path: Path) -> None:
    write(tmp_path / "c", {"x": np.zeros(100)})
    os.truncate(tmp_path / "c.data-00000-of-00001", 799)
    with BundleReader(tmp_path / "c") as reader:
        with pytest.raises(CorruptCheckpointError, match="truncated: tensor 'x' ends at byte 800, the file at 799"):
            reader.check_complete()
        with pytest.raises(CorruptCheckpointError, match="truncated: tensor 'x'"):
            reader.read("x")


def test_a_declared_size_beyond_the_file_reserves_no_memory(tmp_path: Path) -> None:
    from cerebras_tensorflow.saver.bundle.sstable import write_table

    entry = bundle_format.BundleEntry(1, (1 << 40,), 0, 0, 4 << 40, 0)
    header = bundle_format.encode_header(bundle_format.BundleHeader(1))
    (tmp_path / "c.index").write_bytes(write_table([(b"", header), (b"x", bundle_format.encode_entry(entry))]))
    (tmp_path / "c.data-00000-of-00001").write_bytes(b"\0" * 16)
    with BundleReader(tmp_path / "c") as reader, pytest.raises(CorruptCheckpointError, match="truncated"):
        reader.read("x")


def test_an_unknown_name_lists_near_ones(tmp_path: Path) -> None:
    write(tmp_path / "c", {"dense/kernel": 1.0})
    with BundleReader(tmp_path / "c") as reader, pytest.raises(KeyError, match="did you mean 'dense/kernel'"):
        reader.read("dense/kernle")


def test_the_error_for_a_wrong_path_asks_for_the_prefix(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="Give the prefix"):
        BundleReader(tmp_path / "none")


_SAVE = """
import sys, numpy as np
from cerebras_tensorflow.saver.bundle.writer import BundleWriter
print("ready", flush=True)
for value in range(1, 1_000_000):
    with BundleWriter(sys.argv[1]) as writer:
        writer.add("x", np.full(50_000, value, np.int32))
    print(value, flush=True)
"""


def test_kills_at_random_moments_keep_the_last_complete_checkpoint(tmp_path: Path) -> None:
    rng = random.Random(5)
    write(tmp_path / "c", {"x": np.zeros(50_000, np.int32)})
    for _ in range(8):
        with subprocess.Popen(
            [sys.executable, "-c", _SAVE, str(tmp_path / "c")], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            committed = 0
            process.stdout.readline()
            for _ in range(rng.randrange(1, 6)):
                committed = int(process.stdout.readline())
            # Busy-wait for a random time, so that the kill interrupts the next save at a random point.
            for _ in range(rng.randrange(200_000)):
                pass
            process.kill()
        with BundleReader(tmp_path / "c") as reader:
            reader.verify()
            assert reader.read("x")[0] >= committed
