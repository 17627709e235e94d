"""Hostile checkpoints are refused with a message, in time and memory proportional to the size of the file."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import struct
from pathlib import Path

import h5py
import numpy as np
import pytest

from cerebras_tensorflow.errors import CheckpointError, CorruptCheckpointError
from cerebras_tensorflow.saver import tf_h5_saver
from cerebras_tensorflow.saver.bundle import format as bundle_format
from cerebras_tensorflow.saver.bundle import wire
from cerebras_tensorflow.saver.bundle.format import BundleEntry, BundleHeader
from cerebras_tensorflow.saver.bundle.ordered_code import slice_key
from cerebras_tensorflow.saver.bundle.reader import BundleReader
from cerebras_tensorflow.saver.bundle.sstable import read_table, write_table
from cerebras_tensorflow.saver.bundle.writer import BundleWriter
from cerebras_tensorflow.saver.checkpoint_reader import checkpoints_newest_first, open_checkpoint
from cerebras_tensorflow.saver.files.checksum import crc32c, mask
from cerebras_tensorflow.saver.hdf5 import index as h5_index
from cerebras_tensorflow.saver.hdf5 import reader as h5_reader
from cerebras_tensorflow.saver.hdf5 import update as h5_update
from cerebras_tensorflow.saver.hdf5.chunk_cache import open_dataset
from cerebras_tensorflow.saver.hdf5.foreign import ForeignH5Reader
from cerebras_tensorflow.saver.inspection import describe
from cerebras_tensorflow.saver.model_dir.retention import Policy, record_save
from cerebras_tensorflow.saver.model_dir.state import CheckpointState, read_state, write_state

FLOAT32 = 1


def save(folder: Path, name: str, value: int = 0) -> str:
    with BundleWriter(folder / name) as writer:
        writer.add("x", value)
    return str(folder / name)


def sliced_entry(shape: tuple[int, ...], pieces: list[tuple[tuple[int, int], ...]]) -> bytes:
    """The index entry of a partitioned tensor."""
    dims = b"".join(wire.bytes_field(2, wire.varint_field(1, dim)) for dim in shape)
    slices = b""
    for piece in pieces:
        extents = [wire.varint_field(1, start) + wire.varint_field(2, length) for start, length in piece]
        slices += wire.bytes_field(7, b"".join(wire.bytes_field(1, extent) for extent in extents))
    return wire.varint_field(1, FLOAT32) + wire.bytes_field(2, dims) + slices


def write_sliced(prefix: Path, shape: tuple[int, ...], pieces: list[tuple[tuple[int, int], ...]]) -> None:
    """Write a bundle of one tensor with the given pieces; the values of each piece are its number."""
    values = {}
    data = b""
    for number, piece in enumerate(dict.fromkeys(pieces)):
        dims = tuple(length for _, length in piece)
        content = np.full(dims, number, np.float32).tobytes()
        entry = BundleEntry(FLOAT32, dims, 0, len(data), len(content), mask(crc32c(content)))
        values[slice_key(b"x", piece)] = bundle_format.encode_entry(entry)
        data += content
    Path(f"{prefix}.data-00000-of-00001").write_bytes(data)
    pairs = {b"": bundle_format.encode_header(BundleHeader(1)), b"x": sliced_entry(shape, pieces), **values}
    Path(f"{prefix}.index").write_bytes(write_table(sorted(pairs.items())))


@pytest.mark.parametrize(
    "pieces",
    [
        [((0, 2), (0, 4)), ((0, 2), (0, 4))],
        [((0, 2), (0, 4)), ((1, 2), (0, 4))],
        [((0, 4), (0, 2)), ((0, 2), (1, 2)), ((2, 2), (1, 2))],
    ],
    ids=["one piece twice", "rows overlap", "columns overlap"],
)
def test_pieces_that_do_not_tile_the_tensor_are_refused(
    tmp_path: Path, pieces: list[tuple[tuple[int, int], ...]]
) -> None:
    write_sliced(tmp_path / "c", (4, 4), pieces)
    with BundleReader(tmp_path / "c") as reader:
        for use in (reader.verify, reader.check_complete, lambda: reader.read("x"), lambda: list(reader.chunks("x"))):
            with pytest.raises(CorruptCheckpointError, match="its pieces overlap"):
                use()


def test_pieces_that_tile_the_tensor_are_read(tmp_path: Path) -> None:
    write_sliced(tmp_path / "c", (4, 4), [((0, 2), (0, 4)), ((2, 2), (0, 1)), ((2, 2), (1, 3))])
    with BundleReader(tmp_path / "c") as reader:
        reader.verify()
        assert reader.read("x").tolist() == [[0.0] * 4] * 2 + [[1.0] + [2.0] * 3] * 2


def test_a_tensor_with_gaps_is_read_only_where_it_has_values(tmp_path: Path) -> None:
    write_sliced(tmp_path / "c", (4, 4), [((0, 2), (0, 4)), ((2, 2), (1, 3))])
    with BundleReader(tmp_path / "c") as reader:
        reader.verify()
        reader.check_complete()
        assert reader.read_region("x", (slice(1, 3), slice(1, 4))).tolist() == [[0.0] * 3, [1.0] * 3]
        uses = (
            lambda: reader.read("x"),
            lambda: reader.read_slice("x", 0, 2),
            lambda: list(reader.chunks("x")),
            lambda: reader.read_region("x", (slice(1, 3), slice(0, 4))),
        )
        for use in uses:
            with pytest.raises(CheckpointError, match="'x' has no value in a part of its shape"):
                use()


def test_an_unknown_element_type_is_damage(tmp_path: Path) -> None:
    save(tmp_path, "c")
    entry = bundle_format.encode_entry(BundleEntry(99, (), 0, 0, 8, 0))
    pairs = [(b"", bundle_format.encode_header(BundleHeader(1))), (b"x", entry)]
    (tmp_path / "c.index").write_bytes(write_table(pairs))
    with BundleReader(tmp_path / "c") as reader:
        for use in (reader.verify, reader.check_complete, lambda: reader.entry("x"), lambda: reader.extent("x")):
            with pytest.raises(CorruptCheckpointError, match="element type 99"):
                use()


def test_tensors_that_share_bytes_are_refused(tmp_path: Path) -> None:
    save(tmp_path, "c")
    entry = bundle_format.encode_entry(BundleEntry(3, (1,), 0, 0, 4, 0))
    names = [f"x{number:03}".encode() for number in range(100)]
    pairs = [(b"", bundle_format.encode_header(BundleHeader(1))), *((name, entry) for name in names)]
    (tmp_path / "c.index").write_bytes(write_table(pairs))
    with BundleReader(tmp_path / "c") as reader, pytest.raises(CorruptCheckpointError, match="some overlap"):
        reader.verify()


def framed(block: bytes, kind: int = 0) -> bytes:
    content = block + bytes([kind])
    return content + mask(crc32c(content)).to_bytes(4, "little")


def table_of(block: bytes) -> bytes:
    """A table of one block with these bytes."""
    empty = struct.pack("<2I", 0, 1)
    out = bytearray(framed(block))
    meta = wire.encode_varint(len(out)) + wire.encode_varint(len(empty))
    out += framed(empty)
    handle = b"\0" + wire.encode_varint(len(block))
    index = bytes([0, 1, len(handle)]) + b"z" + handle + empty
    index_handle = wire.encode_varint(len(out)) + wire.encode_varint(len(index))
    out += framed(index)
    return bytes(out) + (meta + index_handle).ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)


def test_keys_that_expand_far_beyond_the_file_are_refused() -> None:
    """50 000 keys, each one byte longer than the one before, are 1.2 GB."""
    entries = b"".join(wire.encode_varint(length) + b"\x01\x00a" for length in range(50_000))
    data = table_of(entries + struct.pack("<2I", 0, 1))
    assert len(data) < 400_000
    with pytest.raises(ValueError, match="expand to far more than the file"):
        for _ in read_table(data):
            pass


def test_a_chunk_larger_than_a_block_is_unpacked_once(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file.create_dataset("x", data=np.ones((1024, 1024), np.float32), chunks=(1024, 1024), compression="gzip")
    with h5py.File(tmp_path / "c.h5", "r") as file:
        assert open_dataset(file, "x").id.get_access_plist().get_chunk_cache()[1] >= 4 << 20
    with open_checkpoint(tmp_path / "c.h5") as reader:
        assert reader.verify() == 4 << 20


def test_chunks_of_gigabytes_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file.create_dataset("x", (2, 300_000_000), np.float32, chunks=(2, 300_000_000), compression="gzip")
        file.create_dataset("filler", data=np.random.default_rng(0).integers(0, 255, 2_000_000, np.uint8))
    with open_checkpoint(tmp_path / "c.h5") as reader, pytest.raises(CorruptCheckpointError, match="smaller chunks"):
        reader.verify()


def test_groups_that_link_to_each_other_many_times_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "c.h5", "w") as file:
        group = file
        for _ in range(40):
            child = group.create_group("a")
            group["b"] = child
            group = child
    with pytest.raises(CorruptCheckpointError, match="link to each other more often"):
        ForeignH5Reader(tmp_path / "c.h5")


def test_long_names_above_many_links_are_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "c.h5", "w", libver="latest") as file:
        group = file
        for _ in range(30):
            group = group.create_group("n" * 60_000)
        group["x"] = np.zeros(1)
        for number in range(40):
            group[str(number)] = group["x"]
    with pytest.raises(CorruptCheckpointError, match="have more than 67108864 characters"):
        ForeignH5Reader(tmp_path / "c.h5")


def write_safetensors(path: Path, header: object, num_bytes: int) -> None:
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"\0" * num_bytes)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}, "overlaps another tensor"),
        ({"dtype": "F32", "shape": [1], "data_offsets": [8.0, 12.0]}, "not integers"),
        ({"dtype": "X\x1b[31m", "shape": [1], "data_offsets": [8, 12]}, r"unknown type 'X\\x1b"),
    ],
)
def test_odd_safetensors_headers_are_refused(tmp_path: Path, second: object, message: str) -> None:
    first = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    write_safetensors(tmp_path / "c.safetensors", {"a": first, "b": second}, 16)
    with pytest.raises(CorruptCheckpointError, match=message):
        open_checkpoint(tmp_path / "c.safetensors")


def test_a_name_that_no_text_has_is_damage(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "c.safetensors", {"\ud800": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, 8)
    with pytest.raises(CorruptCheckpointError, match="surrogates not allowed"):
        open_checkpoint(tmp_path / "c.safetensors")


def test_terminal_escapes_in_names_are_shown_escaped(tmp_path: Path) -> None:
    name = "w\x1b]0;owned\x07\n"
    with BundleWriter(tmp_path / "c") as writer:
        writer.add(name, 1)
    with open_checkpoint(tmp_path / "c") as reader:
        lines = list(describe(reader))
    assert all(line.isprintable() for line in lines)
    assert any(line.startswith(r"w\x1b]0;owned\x07\n ") for line in lines)


@pytest.mark.parametrize("kind", ["folder", "pipe", "NUL", "not a time"])
def test_an_odd_state_file_is_refused_and_the_folder_still_listed(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "checkpoint"
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "NUL":
        path.write_text('model_checkpoint_path: "a\\000b"')
    else:
        path.write_text("last_preserved_timestamp: nan")
    newest = save(tmp_path, "model.ckpt-1")
    with pytest.raises(CorruptCheckpointError, match="checkpoint"):
        read_state(tmp_path)
    assert checkpoints_newest_first(tmp_path) == [newest]


def test_a_long_state_file_is_read_in_one_pass(tmp_path: Path) -> None:
    lines = [f'all_model_checkpoint_paths: "model.ckpt-{number}"' for number in range(50_000)]
    (tmp_path / "checkpoint").write_text("\n".join(['model_checkpoint_path: "model.ckpt-9"', *lines]))
    state = read_state(tmp_path)
    assert state is not None and len(state.all_model_checkpoint_paths) == 50_000


def test_a_state_that_names_other_folders_is_ignored(tmp_path: Path) -> None:
    private, model_dir = tmp_path / "private", tmp_path / "model_dir"
    private.mkdir()
    model_dir.mkdir()
    (model_dir / "link").symlink_to(private)
    for step in range(3):
        save(private, f"model.ckpt-{step}")
    before = sorted(os.listdir(private))
    lines = ["../private/model.ckpt-0", f"{private}/model.ckpt-1", "link/model.ckpt-2"]
    text = "".join(f'all_model_checkpoint_paths: "{line}"\n' for line in lines)
    (model_dir / "checkpoint").write_text(f'model_checkpoint_path: "{lines[0]}"\n{text}')
    assert read_state(model_dir) is None
    assert checkpoints_newest_first(model_dir) == []
    with pytest.raises(CheckpointError, match="without a `checkpoint` state"):
        open_checkpoint(model_dir)
    for step in range(5, 9):
        record_save(str(model_dir), save(model_dir, f"model.ckpt-{step}"), Policy(keep_max=1))
    assert sorted(os.listdir(private)) == before
    assert checkpoints_newest_first(model_dir) == [str(model_dir / "model.ckpt-8")]


def test_a_copied_model_dir_uses_its_own_files(tmp_path: Path) -> None:
    """TensorFlow writes absolute paths if the model_dir is absolute."""
    origin, copied = tmp_path / "origin", tmp_path / "copy"
    origin.mkdir()
    paths = [save(origin, f"model.ckpt-{step}", step) for step in range(2)]
    listed = "".join(f'all_model_checkpoint_paths: "{path}"\n' for path in paths)
    (origin / "checkpoint").write_text(f'model_checkpoint_path: "{paths[1]}"\n{listed}')
    shutil.copytree(origin, copied)
    before = sorted(os.listdir(origin))
    assert checkpoints_newest_first(copied) == [str(copied / f"model.ckpt-{step}") for step in (1, 0)]
    gone = record_save(str(copied), save(copied, "model.ckpt-2"), Policy(keep_max=1))
    assert gone == [str(copied / f"model.ckpt-{step}") for step in range(2)]
    assert sorted(os.listdir(origin)) == before


def test_a_journal_does_not_write_through_a_link(tmp_path: Path) -> None:
    private = tmp_path / "private.h5"
    tf_h5_saver.save(private, {"x": np.zeros(4, np.float32)})
    before = private.read_bytes()
    (tmp_path / "c.h5").symlink_to(private)
    header = json.dumps({"writes": [["c.h5", 0, 4]]}).encode()
    Path(h5_update.journal_path(str(tmp_path / "c.h5"))).write_bytes(header + b"\nevil")
    with pytest.raises(CheckpointError):
        open_checkpoint(tmp_path / "c.h5")
    assert private.read_bytes() == before


def test_a_state_without_times_uses_those_of_the_files(tmp_path: Path) -> None:
    """Regression: without times, each of 60 saves, 100 hours apart, was kept forever."""
    hour_s = 3600.0
    policy = Policy(keep_max=2, keep_every_n_hours=10_000)
    now_s = 1_700_000_000.0
    paths = []
    for step in range(4):
        paths.append(save(tmp_path, f"model.ckpt-{step}"))
        for file in (f"{paths[-1]}.index", f"{paths[-1]}.data-00000-of-00001"):
            os.utime(file, (now_s + step, now_s + step))
    write_state(tmp_path, CheckpointState(paths[-1], tuple(paths)))
    for step in range(4, 64):
        record_save(str(tmp_path), save(tmp_path, f"model.ckpt-{step}"), policy, now_s + step * 100 * hour_s)
    assert checkpoints_newest_first(tmp_path) == [str(tmp_path / f"model.ckpt-{step}") for step in (63, 62)]


def test_retention_works_after_the_clock_is_set_back(tmp_path: Path) -> None:
    policy = Policy(keep_max=2, keep_every_n_hours=1)
    for step, saved_at_s in enumerate([9e9, 9e9 + 10, 1e9, 1e9 + 10, 1e9 + 20, 1e9 + 30]):
        record_save(str(tmp_path), save(tmp_path, f"model.ckpt-{step}"), policy, saved_at_s)
    assert checkpoints_newest_first(tmp_path) == [str(tmp_path / f"model.ckpt-{step}") for step in (5, 4)]
    state = read_state(tmp_path)
    assert state is not None and state.last_preserved_timestamp is not None and state.last_preserved_timestamp <= 1e9


def test_a_pause_of_many_periods_keeps_only_one_checkpoint(tmp_path: Path) -> None:
    policy = Policy(keep_max=1, keep_every_n_hours=1)
    for step, saved_at_s in enumerate([0.0, 360_000.0, *(360_000.0 + 60 * number for number in range(1, 20))]):
        record_save(str(tmp_path), save(tmp_path, f"model.ckpt-{step}"), policy, saved_at_s)
    assert checkpoints_newest_first(tmp_path) == [str(tmp_path / "model.ckpt-20"), str(tmp_path / "model.ckpt-1")]


@pytest.mark.parametrize("keep_max", [0, None])
def test_keeping_all_lists_the_newest_only(tmp_path: Path, keep_max: int | None) -> None:
    """As TensorFlow 2.15's Saver with max_to_keep=0 or None."""
    for step in range(3):
        record_save(str(tmp_path), save(tmp_path, f"model.ckpt-{step}"), Policy(keep_max))
    state = read_state(tmp_path)
    assert state is not None
    assert state.all_model_checkpoint_paths == (str(tmp_path / "model.ckpt-2"),)
    assert len(checkpoints_newest_first(tmp_path)) == 3


def test_a_pipe_in_place_of_values_does_not_block(tmp_path: Path) -> None:
    save(tmp_path, "c")
    (tmp_path / "c.data-00000-of-00001").unlink()
    os.mkfifo(tmp_path / "c.data-00000-of-00001")
    with BundleReader(tmp_path / "c") as reader, pytest.raises(CorruptCheckpointError, match="truncated"):
        reader.read("x")
    tf_h5_saver.save(tmp_path / "s.h5", {"x": np.zeros(9)}, lambda _name, _size: 1)
    shard = next(tmp_path.glob("s-00001-*"))
    shard.unlink()
    os.mkfifo(shard)
    with open_checkpoint(tmp_path / "s.h5") as reader, pytest.raises(CorruptCheckpointError, match="damaged"):
        reader.read("x")


def test_many_names_for_the_same_bytes_are_refused(tmp_path: Path) -> None:
    """A file of 4 MB would load as 1.2 GB."""
    tf_h5_saver.save(tmp_path / "c.h5", {"x": np.zeros(1 << 20, np.float32)})
    index = h5_reader.read_index(str(tmp_path / "c.h5"))
    assert index is not None
    records = {f"x{number}": index.records["x"] for number in range(300)}
    data = (tmp_path / "c.h5").read_bytes()[: index.end]
    (tmp_path / "c.h5").write_bytes(data + h5_index.encode(dataclasses.replace(index, records=records)))
    with pytest.raises(CorruptCheckpointError, match="some overlap"):
        open_checkpoint(tmp_path / "c.h5")
    save(tmp_path, "bundle")
    table = dict(read_table((tmp_path / "bundle.index").read_bytes()))
    names = {b"x%03d" % number: table[b"x"] for number in range(300)}
    (tmp_path / "bundle.index").write_bytes(write_table(sorted({b"": table[b""], **names}.items())))
    with pytest.raises(CorruptCheckpointError, match="some overlap"):
        tf_h5_saver.load(tmp_path / "bundle")


def test_a_safetensors_file_with_a_name_twice_is_refused(tmp_path: Path) -> None:
    one = '"a":{"dtype":"F32","shape":[1],"data_offsets":[%d,%d]}'
    header = f"{{{one % (0, 4)},{one % (4, 8)}}}".encode()
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(CorruptCheckpointError, match="a key is there twice"):
        open_checkpoint(path)
