"""HDF5 checkpoints: bit-exact round trips, detection of damage, and no partial files."""

import json
import os
import random
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebras_tensorflow.errors import CheckpointError, CorruptCheckpointError
from cerebras_tensorflow.saver import tf_h5_saver
from cerebras_tensorflow.saver.checkpoint_reader import is_complete, open_checkpoint
from cerebras_tensorflow.saver.files.checksum import crc32c
from cerebras_tensorflow.saver.hdf5 import blocks as h5_blocks
from cerebras_tensorflow.saver.hdf5 import compressed as h5_compressed
from cerebras_tensorflow.saver.hdf5.foreign import ForeignH5Reader
from cerebras_tensorflow.saver.hdf5.reader import read_index
from cerebras_tensorflow.saver.hdf5.update import journal_path
from cerebras_tensorflow.saver.hdf5.writer import H5Writer

DTYPES = [
    *(np.dtype(kind) for kind in ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?", "c8", "c16")),
    *(np.dtype(kind) for kind in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.int4)),
]


@pytest.mark.parametrize("compression", ["none", "gzip", "lz4"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_comes_back_to_the_last_bit(tmp_path: Path, dtype: np.dtype[Any], compression: str) -> None:
    raw = np.random.default_rng(1).integers(0, 2 if dtype.kind == "b" else 256, 24 * dtype.itemsize, np.uint8)
    value = raw.view(dtype).reshape(2, 3, 4)
    tf_h5_saver.save(tmp_path / "c.h5", {"x": value}, compression=compression)
    with open_checkpoint(tmp_path / "c.h5") as reader:
        for back in (reader.read("x"), reader.read_slice("x", 0, 2)):
            assert back.dtype == dtype
            assert back.tobytes() == value.tobytes()
        assert reader.verify() == value.nbytes
    # HDF5's own records say the same, without our index.
    with ForeignH5Reader(tmp_path / "c.h5", accept_unindexed=True) as reader:
        assert reader.read("x").dtype == dtype
        assert reader.read("x").tobytes() == value.tobytes()


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,) * 8, (2, 1, 3, 1, 2, 1, 2, 2), (3, 700, 1000)], ids=str)
def test_every_rank_and_empty_tensors_come_back(tmp_path: Path, shape: tuple[int, ...], compression: str) -> None:
    value = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    tf_h5_saver.save(tmp_path / "c.h5", {"x": value}, compression=compression)
    with open_checkpoint(tmp_path / "c.h5") as reader:
        np.testing.assert_array_equal(reader.read("x"), value)
        assert b"".join(bytes(memoryview(piece)) for piece in reader.chunks("x")) == value.tobytes()


@settings(deadline=None, max_examples=30)
@given(st.dictionaries(st.text(min_size=1), st.integers(0, 2**62), min_size=1))
def test_any_unicode_name_comes_back(tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, int]) -> None:
    tensors = {name: value for name, value in tensors.items() if not any("\ud800" <= c <= "\udfff" for c in name)}
    path = tmp_path_factory.mktemp("names") / "c.h5"
    tf_h5_saver.save(path, tensors)
    assert {name: int(value) for name, value in tf_h5_saver.load(path).items()} == tensors
    with ForeignH5Reader(path, accept_unindexed=True) as reader:
        assert {name: int(reader.read(name)) for name in reader.names()} == tensors


def test_strings_come_back(tmp_path: Path) -> None:
    value = np.array([[b"x", "y\u00fc"], [b"", b"\xff\0"]], object)
    tf_h5_saver.save(tmp_path / "c.h5", {"text": value, "one": "scalar"})
    loaded = tf_h5_saver.load(tmp_path / "c.h5")
    assert loaded["text"].tolist() == [[b"x", "y\u00fc".encode()], [b"", b"\xff\0"]]
    assert loaded["one"].tolist() == b"scalar"


def test_the_layout_matches_what_published_readers_expect(tmp_path: Path) -> None:
    tf_h5_saver.save(tmp_path / "c.h5", {"a/b:0": np.ones(3, ml_dtypes.bfloat16)})
    with h5py.File(tmp_path / "c.h5") as file:
        dataset = file["a%2Fb%3A0"]
        assert dataset.dtype == np.int16
        assert dataset.chunks is None
        assert dict(dataset.attrs) == {
            "__H5_TYPE__": "NumpyArrayH5Type",
            "is_bfloat16": True,
            "__TYPE__": "NumpyArraySerializer",
            "__NUMPY__": True,
        }


def test_the_same_values_make_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.h5", "b.h5"):
        tf_h5_saver.save(tmp_path / name, {"x": np.arange(100_000), "y": 1.0})
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


@pytest.mark.parametrize("compression", ["gzip", "lz4"])
@pytest.mark.parametrize("shape", [(), (0, 3), (700_000,), (3, 5, 100_000), (1000, 1001)])
def test_compression_in_threads_gives_the_same_file_as_one_thread(
    tmp_path: Path, shape: tuple[int, ...], compression: str
) -> None:
    rng = np.random.default_rng(6)
    value, noise = rng.integers(0, 9, shape).astype(np.int32), rng.integers(0, 1 << 31, shape).astype(np.int32)
    for jobs in (1, 3):
        with H5Writer(tmp_path / f"{jobs}.h5", compression, jobs) as writer:
            writer.add("x", value)
            writer.add("again", value)
            writer.add("noise", noise)  # does not shrink
    assert (tmp_path / "1.h5").read_bytes() == (tmp_path / "3.h5").read_bytes()
    with h5py.File(tmp_path / "3.h5") as file:
        np.testing.assert_array_equal(file["x"][()], value)
        np.testing.assert_array_equal(file["noise"][()], noise)
    np.testing.assert_array_equal(tf_h5_saver.load(tmp_path / "3.h5")["again"], value)


def test_lz4_works_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(h5_compressed.importlib.util, "find_spec", lambda name: None)
    value = np.arange(700_000)
    tf_h5_saver.save(tmp_path / "c.h5", {"x": value}, compression="lz4")
    assert (tmp_path / "c.h5").stat().st_size < value.nbytes
    np.testing.assert_array_equal(tf_h5_saver.load(tmp_path / "c.h5")["x"], value)


def test_a_new_file_is_never_truncated_to_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ext4 flushes a truncated file when it is closed, which takes longer than writing it."""
    sizes, cut = [], os.ftruncate

    def noted(fd: int, size: int) -> None:
        sizes.append(size)
        cut(fd, size)

    monkeypatch.setattr(os, "ftruncate", noted)
    tf_h5_saver.save(tmp_path / "c.h5", {"x": np.arange(100_000)})
    assert 0 not in sizes


def test_every_flipped_byte_is_found(tmp_path: Path) -> None:
    path = tmp_path / "c.h5"
    tf_h5_saver.save(path, {"a": np.random.default_rng(3).random(300), "b": "text", "c": np.ones((3, 7))})
    original = path.read_bytes()
    rng = random.Random(7)
    for position in [*rng.sample(range(len(original)), 400), *range(len(original) - 300, len(original))]:
        damaged = bytearray(original)
        damaged[position] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError), open_checkpoint(path) as reader:
            reader.verify()
    path.write_bytes(original)
    with open_checkpoint(path) as reader:
        reader.verify()


@pytest.mark.parametrize("kept", [0, 7, 100, 2000, -1, -50])
def test_a_truncated_file_is_not_a_checkpoint(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "c.h5"
    tf_h5_saver.save(path, {"a": np.zeros(1000)})
    os.truncate(path, kept if kept >= 0 else path.stat().st_size + kept)
    assert not is_complete(path)
    with pytest.raises(CheckpointError):
        open_checkpoint(path)


def test_a_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "c.h5"
    tf_h5_saver.save(path, {"x": 1})
    with pytest.raises(ValueError, match="need 16"), H5Writer(path) as writer:
        writer.add_chunks("x", np.float64, (2,), [b"\0" * 15])
    assert tf_h5_saver.load(path)["x"] == 1
    assert os.listdir(tmp_path) == ["c.h5"]


def test_shards_follow_the_layout_and_each_is_a_checkpoint(tmp_path: Path) -> None:
    layout = tf_h5_saver.Layout(((0, "embedding*"), (2, "layer_*")))
    values = {"embedding": np.arange(4), "layer_0": np.ones(3), "layer_1": np.zeros((2, 2))}
    tf_h5_saver.save(tmp_path / "c.h5", values, layout)
    assert sorted(os.listdir(tmp_path)) == ["c-00000-of-00003.h5", "c-00002-of-00003.h5", "c.h5"]
    loaded = tf_h5_saver.load(tmp_path / "c.h5")
    assert {name: value.tolist() for name, value in loaded.items()} == {n: v.tolist() for n, v in values.items()}
    assert list(tf_h5_saver.load(tmp_path / "c-00000-of-00003.h5")) == ["embedding"]
    with open_checkpoint(tmp_path / "c.h5") as reader:
        reader.verify()
    tf_h5_saver.save(tmp_path / "c.h5", values, 60)
    assert sorted(os.listdir(tmp_path)) == ["c-00000-of-00002.h5", "c-00001-of-00002.h5", "c.h5"]
    os.unlink(tmp_path / "c-00001-of-00002.h5")
    assert not is_complete(tmp_path / "c.h5")
    tf_h5_saver.save(tmp_path / "c.h5", values)
    assert os.listdir(tmp_path) == ["c.h5"]


def test_lazy_tensors_support_numpy_indexing(tmp_path: Path) -> None:
    value = np.arange(24).reshape(4, 3, 2)
    tf_h5_saver.save(tmp_path / "c.h5", {"x": value})
    with tf_h5_saver.H5Checkpoint(tmp_path / "c.h5") as checkpoint:
        lazy = checkpoint["x"]
        assert (lazy.shape, lazy.nbytes, list(checkpoint)) == ((4, 3, 2), 192, ["x"])
        for index in (np.s_[1:3], np.s_[-1], np.s_[1:3, 0], np.s_[2, 1:, 0], np.s_[::2], np.s_[..., 1], np.s_[:0]):
            np.testing.assert_array_equal(lazy[index], value[index])
        np.testing.assert_array_equal(np.asarray(lazy), value)


def test_an_update_replaces_single_weights_in_place(tmp_path: Path) -> None:
    path = tmp_path / "c.h5"
    for sharding in (None, 900):
        tf_h5_saver.save(path, {"a": np.zeros(100), "b": np.ones(100)}, sharding)
        inode = path.stat().st_ino
        tf_h5_saver.update(path, {"b": np.full(100, 7.0)})
        assert path.stat().st_ino == inode
        assert tf_h5_saver.load(path)["b"][0] == 7
        with open_checkpoint(path) as reader:
            reader.verify()
        with ForeignH5Reader(path if sharding is None else tmp_path / "c-00001-of-00002.h5", True) as reader:
            assert reader.read("b")[3] == 7


def test_an_update_that_does_not_fit_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "c.h5"
    tf_h5_saver.save(path, {"a": np.zeros(4)})
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"float64 \(4,\), the new value float64 \(5,\)"):
        tf_h5_saver.update(path, {"a": np.zeros(5)})
    with pytest.raises(KeyError, match="adds none"):
        tf_h5_saver.update(path, {"a": np.ones(4), "b": 1})
    assert path.read_bytes() == before
    tf_h5_saver.save(path, {"a": np.zeros(4)}, compression="gzip")
    with pytest.raises(CheckpointError, match="compressed"):
        tf_h5_saver.update(path, {"a": np.ones(4)})


def test_a_file_changed_by_another_program_is_refused_by_default(tmp_path: Path) -> None:
    path = tmp_path / "c.h5"
    tf_h5_saver.save(path, {"a": np.zeros(4)})
    with h5py.File(path, "r+") as file:
        file["a"][1] = 5
    with pytest.raises(CorruptCheckpointError, match="changed by another program"):
        open_checkpoint(path)
    with open_checkpoint(path, accept_changed=True) as reader:
        assert reader.read("a").tolist() == [0, 5, 0, 0]


HOSTILE = [
    {"version": 1, "shards": ["../../etc/passwd"], "tensors": {}},
    {"version": 1, "shards": [".."], "tensors": {}},
    {"version": 2, "shards": [], "tensors": {}},
    {"version": 1, "shards": [], "tensors": []},
    {"version": 1, "shards": [], "tensors": {"x": ["float32", [1 << 40], 0, 4 << 40, "0", 0]}},
    {"version": 1, "shards": [], "tensors": {"x": ["float32", [1 << 40], -1, 4 << 40, "0", 0]}},
    {"version": 1, "shards": [], "tensors": {"x": ["float32", [1 << 70, 0], 0, 0, "0", 0]}},
    {"version": 1, "shards": [], "tensors": {"x": ["float32", [-1, -4], 0, 16, "0", 0]}},
    {"version": 1, "shards": [], "tensors": {"x": ["float32", [1] * 65, 0, 4, "0", 0]}},
    {"version": 1, "shards": [], "tensors": {"x": ["float32", [1.5], 0, 6, "0", 0]}},
    {"version": 1, "shards": [], "tensors": {"x": ["object", [1], 0, 8, "0", 0]}},
    {"version": 1, "shards": [], "tensors": {"x": ["float32", [1], 0, 4, "0", 3]}},
    {"version": 1, "shards": [], "tensors": {"x": ["float32", [1], -7, 4, "0", 0]}},
    {"version": 1, "shards": [], "tensors": {"x": 3}},
    [],
    3,
]


@pytest.mark.parametrize("content", HOSTILE, ids=str)
def test_a_hostile_index_with_right_checksums_is_refused(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "c.h5"
    tf_h5_saver.save(path, {"x": np.float32(1)})
    index = read_index(str(path))
    assert index is not None
    body = json.dumps(content).encode()
    tail = struct.pack("<8sQQII", b"\x93CBTFIDX", index.end, len(body), crc32c(body), index.rest_crc)
    path.write_bytes(path.read_bytes()[: index.end] + body + tail + struct.pack("<I", crc32c(tail)))
    with pytest.raises(CorruptCheckpointError, match="damaged"):
        open_checkpoint(path)


def test_a_forged_journal_writes_no_other_file(tmp_path: Path) -> None:
    path = tmp_path / "c.h5"
    tf_h5_saver.save(path, {"x": 1})
    (tmp_path / "run.py").write_text("mine")
    Path(journal_path(str(path))).write_bytes(b'{"writes": [["run.py", 0, 4]]}\nevil')
    with pytest.raises(CorruptCheckpointError, match=r"it writes to run\.py, not a file of this checkpoint"):
        open_checkpoint(path)
    assert (tmp_path / "run.py").read_text() == "mine"


@pytest.mark.parametrize(
    "header",
    [
        b'{"writes": [["c.h5", 0, 4611686018427387904]]}\nevil',
        b'{"writes": [["c.h5", 4611686018427387904, 4]]}\nevil',
        b'{"writes": [["c.h5", -1, 4]]}\nevil',
        b'{"writes": [["c.h5", 0, -4], ["c.h5", 0, 8]]}\nevil',
        b'{"writes": [["c.h5", Infinity, 4]]}\nevil',
        b"[" * 200_000,
    ],
    ids=["a huge size", "a huge offset", "a negative offset", "a negative size", "an infinite offset", "deep nesting"],
)
def test_a_forged_journal_takes_no_time_and_changes_nothing(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "c.h5"
    tf_h5_saver.save(path, {"x": 1})
    before = path.read_bytes()
    Path(journal_path(str(path))).write_bytes(header)
    with pytest.raises(CorruptCheckpointError, match="damaged"):
        open_checkpoint(path)
    assert path.read_bytes() == before


def test_a_pipe_in_the_place_of_a_journal_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "c.h5"
    tf_h5_saver.save(path, {"x": 1})
    os.mkfifo(journal_path(str(path)))
    with pytest.raises(CheckpointError, match="not a regular file"):
        open_checkpoint(path)


_LOOP = """
import sys, numpy as np
from cerebras_tensorflow.saver import tf_h5_saver
path, kind = sys.argv[1:]
for value in range(1, 1_000_000):
    new = {"a": np.full(60_000, value), "b": np.full(60_000, value)}
    if kind == "update":
        tf_h5_saver.update(path, new)
    else:
        tf_h5_saver.save(path, new, 500_000 if kind == "shards" else None)
    print(value, flush=True)
"""


@pytest.mark.parametrize("kind", ["save", "shards", "update"])
def test_kills_at_random_moments_leave_the_old_or_the_new_values(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "c.h5"
    rng = random.Random(11)
    tf_h5_saver.save(path, {"a": np.zeros(60_000, int), "b": np.zeros(60_000, int)})
    for _ in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", _LOOP, str(path), kind], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            done = 0
            for _ in range(rng.randrange(1, 5)):
                done = int(process.stdout.readline())
            for _ in range(rng.randrange(300_000)):
                pass
            process.kill()
        with open_checkpoint(path) as reader:
            reader.verify()
            values = {int(value) for name in ("a", "b") for value in np.unique(reader.read(name))}
        assert len(values) == 1
        assert values.pop() >= done


@given(
    st.lists(st.integers(0, 7), max_size=4).map(tuple),
    st.integers(1, 64),
    st.one_of(st.none(), st.lists(st.integers(1, 3), min_size=4, max_size=4).map(tuple)),
)
def test_blocks_cover_an_array_in_order(shape: tuple[int, ...], size: int, chunks: tuple[int, ...] | None) -> None:
    value = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    cut = h5_blocks.blocks(shape, (chunks and chunks[: len(shape)]) or None, 8, size)
    parts = [value[block].reshape(-1) for block in cut]
    np.testing.assert_array_equal(np.concatenate([np.empty(0, int), *parts]), value.reshape(-1))


@pytest.mark.parametrize("shape", [(1 << 18,), (512, 512), (64, 64, 64)])
def test_a_block_touches_a_bounded_number_of_chunks(shape: tuple[int, ...]) -> None:
    counts = [
        int(np.prod([part.stop - part.start for part in block])) for block in h5_blocks.blocks(shape, (1, 1, 1), 1)
    ]
    assert sum(counts) == 1 << 18
    assert max(counts) <= 1 << 15
