"""range_copy: threads copy values between files, and damaged values are refused."""

import os
from pathlib import Path

import numpy as np
import pytest

from cerebras_tensorflow.errors import CheckpointError, CorruptCheckpointError
from cerebras_tensorflow.saver import convert, tf_h5_saver
from cerebras_tensorflow.saver.bundle.writer import BundleWriter
from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint
from cerebras_tensorflow.saver.files.range_copy import RangeCopier
from cerebras_tensorflow.saver.hdf5.sharded import ShardedH5Writer
from cerebras_tensorflow.saver.hdf5.writer import H5Writer
from cerebras_tensorflow.saver.interface import StoredExtent, TensorWriter

# Two values larger than a block, one of them of odd size, and small values between and after them.
SIZES = {"a/large": 40_000_000, "b/small": 16, "c/odd": 17_000_003, "d/just": 1 << 20, "e/empty": 0, "f/last": 5}


@pytest.fixture
def values() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    return {name: rng.integers(0, 256, size, np.uint8) for name, size in SIZES.items()}


@pytest.fixture
def source(tmp_path: Path, values: dict[str, np.ndarray]) -> Path:
    with BundleWriter(tmp_path / "in") as writer:
        for name, value in values.items():
            writer.add(name, value)
    return tmp_path / "in"


@pytest.mark.parametrize("jobs", [1, 3])
def test_every_value_arrives_in_either_format_and_in_shards(
    tmp_path: Path, source: Path, values: dict[str, np.ndarray], jobs: int
) -> None:
    def shard(name: str, num_bytes: int) -> int:
        return int(num_bytes < 20_000_000)

    writers: list[TensorWriter] = [
        H5Writer(tmp_path / "one.h5"),
        H5Writer(tmp_path / "quick.h5", is_durable=False),
        ShardedH5Writer(tmp_path / "shards.h5", shard),
        BundleWriter(tmp_path / "bundle", shard, is_durable=False),
    ]
    for writer in writers:
        counted: list[int] = []
        with open_checkpoint(source) as reader, writer:
            convert.copy(reader, writer, progress=counted.append, jobs=jobs)
        assert sum(counted) == sum(SIZES.values())
        with open_checkpoint(writer.path) as result:
            assert result.verify() == sum(SIZES.values())
            for name, value in values.items():
                np.testing.assert_array_equal(result.read(name), value)
    assert (tmp_path / "one.h5").read_bytes() == (tmp_path / "quick.h5").read_bytes()


@pytest.mark.parametrize("position", [3, 39_999_999, 40_000_016 + 16_900_000])
def test_a_flipped_bit_of_the_source_is_found_and_nothing_is_left(tmp_path: Path, source: Path, position: int) -> None:
    data = Path(f"{source}.data-00000-of-00001")
    with data.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 16]))
    name = "a/large" if position < SIZES["a/large"] else "c/odd"
    with pytest.raises(CorruptCheckpointError, match=f"tensor '{name}' .* is damaged: its checksum is"):
        tf_h5_saver.tensorflow_to_h5(source, tmp_path / "out.h5")
    assert sorted(os.listdir(tmp_path)) == ["in.data-00000-of-00001", "in.index"]


def test_a_source_that_is_too_short_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(bytes(20_000_000))
    writer = H5Writer(tmp_path / "x.h5")
    place = writer.reserve("a", np.uint8, (30_000_000,), 0)
    assert place is not None
    where = StoredExtent(str(tmp_path / "short"), 0, 0)
    with pytest.raises(CorruptCheckpointError, match="the file ends at byte 20000000"), RangeCopier(2) as copier:
        copier.copy("a", where, 30_000_000, place)
    writer.abort()
    assert os.listdir(tmp_path) == ["short"]


@pytest.mark.parametrize(
    "path, problem",
    [("/proc/self/mem", "Input/output error"), ("/proc/self/no_such_file", "No such file or directory")],
    ids=["read", "open"],
)
def test_the_error_of_an_unreadable_source_names_it(tmp_path: Path, path: str, problem: str) -> None:
    # Nothing is mapped at address 0: the kernel answers with the error of a failing disk.
    writer = H5Writer(tmp_path / "x.h5")
    place = writer.reserve("a", np.uint8, (2_000_000,), 0)
    assert place is not None
    expected = f"{path}: tensor 'a' .*cannot be read: {problem}. .*use another checkpoint"
    with pytest.raises(CheckpointError, match=expected), RangeCopier(2) as copier:
        copier.copy("a", StoredExtent(path, 0, 0), 2_000_000, place)
    writer.abort()
    assert os.listdir(tmp_path) == []


def test_a_compressing_writer_reserves_nothing(tmp_path: Path) -> None:
    with H5Writer(tmp_path / "x.h5", "gzip") as writer:
        assert writer.reserve("a", np.uint8, (4 << 20,), 0) is None
        writer.add("a", np.ones(4 << 20, np.uint8))
    assert tf_h5_saver.load(tmp_path / "x.h5")["a"].sum() == 4 << 20


@pytest.mark.parametrize("writer_of", [H5Writer, BundleWriter])
def test_a_name_is_reserved_once(tmp_path: Path, writer_of: type[H5Writer] | type[BundleWriter]) -> None:
    writer = writer_of(tmp_path / "x.h5")
    writer.reserve("a", np.uint8, (4 << 20,), 0)
    with pytest.raises(ValueError, match="tensor 'a' is added twice"):
        writer.reserve("a", np.uint8, (4 << 20,), 0)
    writer.abort()
    with pytest.raises(CheckpointError, match="has ended"):
        writer.reserve("b", np.uint8, (4 << 20,), 0)
