"""hdf5.isolated: another process runs libhdf5, and its end is an error for one file only."""

import os
import signal
from pathlib import Path

import h5py
import numpy as np
import pytest

from cerebras_tensorflow.errors import CheckpointError, CorruptCheckpointError
from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint
from cerebras_tensorflow.saver.hdf5 import isolated


def write(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        file.create_dataset("packed", data=np.arange(6.0), chunks=(2,), compression="gzip")
    return path


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.fixture
def starter(tmp_path: Path) -> int:
    """The process that forks a process for each file."""
    open_checkpoint(write(tmp_path / "first.h5")).close()
    process = isolated._starter._process
    assert process is not None
    return process.pid


def test_a_crash_of_libhdf5_is_an_error_for_its_file_only(tmp_path: Path, starter: int) -> None:
    with open_checkpoint(write(tmp_path / "other.h5")) as other:
        before = children_of(starter)
        with open_checkpoint(write(tmp_path / "c.h5")) as reader:
            (mine,) = set(children_of(starter)) - set(before)
            os.kill(mine, signal.SIGSEGV)
            with pytest.raises(CorruptCheckpointError, match="the HDF5 library crashed"):
                reader.read("packed")
            with pytest.raises(CheckpointError, match="closed"):
                reader.read("packed")
        assert other.read("packed").tolist() == [0, 1, 2, 3, 4, 5]


def test_the_process_starts_again_if_somebody_killed_it(tmp_path: Path, starter: int) -> None:
    os.kill(starter, signal.SIGKILL)
    with open_checkpoint(tmp_path / "first.h5") as reader:
        assert reader.read_slice("packed", 1, 3).tolist() == [1, 2]


def test_a_closed_reader_leaves_no_process_and_no_file_open(tmp_path: Path, starter: int) -> None:
    files_before, processes_before = len(os.listdir("/proc/self/fd")), children_of(starter)
    for _ in range(3):
        open_checkpoint(tmp_path / "first.h5").close()
        with pytest.raises(CorruptCheckpointError):
            (tmp_path / "bad.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + b"\0" * 100)
            open_checkpoint(tmp_path / "bad.h5")
    assert len(os.listdir("/proc/self/fd")) == files_before
    with open_checkpoint(tmp_path / "first.h5") as last:
        last.read("packed")
        assert len(children_of(starter)) <= len(processes_before) + 1


def test_values_are_read_at_their_place_in_every_layout(tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    with h5py.File(tmp_path / "c.h5", "w", userblock_size=1024) as file:
        file["plain"], file["swapped"] = values, values.astype(">f4")
        file.create_dataset("chunked", data=values, chunks=(2, 2))
        compact = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        compact.set_layout(h5py.h5d.COMPACT)
        space, kind = h5py.h5s.create_simple((4, 3)), h5py.h5t.py_create(np.dtype("<f4"))
        h5py.h5d.create(file.id, b"compact", kind, space, compact).write(h5py.h5s.ALL, h5py.h5s.ALL, values)
    with open_checkpoint(tmp_path / "c.h5") as reader:
        for name in ("plain", "swapped", "chunked", "compact"):
            assert np.array_equal(reader.read(name), values), name
            assert np.array_equal(reader.read_slice(name, 1, 3), values[1:3]), name
            assert b"".join(bytes(piece) for piece in reader.chunks(name)) == values.tobytes(), name


def test_links_to_one_large_tensor_are_limited(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file["w"] = np.zeros(2 << 20, np.float32)
        file["tied"] = file["w"]
    with open_checkpoint(tmp_path / "c.h5") as reader:
        assert reader.names() == ["tied", "w"]
    with h5py.File(tmp_path / "c.h5", "a") as file:
        for number in range(20):
            file[f"soft{number}"] = h5py.SoftLink("/w")
    with pytest.raises(CorruptCheckpointError, match="so many links lead to the same tensors"):
        open_checkpoint(tmp_path / "c.h5")


def test_an_interrupted_read_never_answers_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(tmp_path / "c.h5", "w") as file:
        for name in ("a", "b"):
            file.create_dataset(name, data=np.full(2 << 20, ord(name), np.float32), chunks=(1 << 20,), compression=1)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with open_checkpoint(tmp_path / "c.h5") as reader:
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(isolated.IsolatedH5, "_fill", interrupt)
            reader.read("a")
        with pytest.raises(CheckpointError, match="a read ended in an error, or was interrupted"):
            reader.read("b")
    with open_checkpoint(tmp_path / "c.h5") as reader:
        assert reader.read("b")[0] == ord("b")


def test_a_fork_does_not_use_the_readers_of_its_parent(tmp_path: Path, starter: int) -> None:
    with open_checkpoint(tmp_path / "first.h5") as reader:
        child = os.fork()
        if child == 0:
            try:
                reader.read("packed")
            except CheckpointError as error:
                reader.close()
                os._exit(7 if "another process opened this reader" in str(error) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert reader.read("packed").tolist() == [0, 1, 2, 3, 4, 5]


def test_the_process_ends_even_if_a_fork_still_has_its_socket(starter: int) -> None:
    child = os.fork()
    if child == 0:
        signal.pause()
    try:
        isolated._starter.end()
        assert not Path(f"/proc/{starter}").exists()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_slice_is_read_in_pieces(tmp_path: Path) -> None:
    values = np.arange(3 << 20, dtype=np.float32).reshape(-1, 3)
    with h5py.File(tmp_path / "c.h5", "w") as file:
        file.create_dataset("packed", data=values, chunks=(1000, 2), compression=1)
        file["text"] = [f"row {number}" for number in range(700_000)]
    with open_checkpoint(tmp_path / "c.h5") as reader:
        assert np.array_equal(reader.read_slice("packed", 17, 1_000_003), values[17:1_000_003])
        assert reader.read("text")[-1] == b"row 699999"
