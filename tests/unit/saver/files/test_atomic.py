"""atomic: complete files under final names, nothing else."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.saver.files import atomic


def test_a_file_appears_only_at_commit(tmp_path: Path) -> None:
    target = tmp_path / "new" / "weights"
    partial = atomic.PartialFile(str(target))
    atomic.write_all(partial.fd, b"abc")
    assert not target.exists()
    partial.commit()
    assert target.read_bytes() == b"abc"
    assert os.listdir(target.parent) == ["weights"]


def test_discard_keeps_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "weights"
    target.write_bytes(b"old")
    partial = atomic.PartialFile(str(target))
    atomic.write_all(partial.fd, b"new")
    partial.discard()
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["weights"]


@pytest.fixture
def _no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(fd: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(atomic.fcntl, "flock", flock)


@pytest.mark.usefixtures("_no_locks")
def test_a_file_system_without_locks_takes_files_and_refuses_a_second_writer(tmp_path: Path) -> None:
    partial = atomic.PartialFile(str(tmp_path / "weights"))
    atomic.write_all(partial.fd, b"abc")
    assert atomic.remove_stale(str(tmp_path)) == []  # its writer may be alive
    with pytest.raises(CheckpointError, match=r"no locks that tell whether its process still writes.*remove the file"):
        atomic.PartialFile(str(tmp_path / "weights"))
    partial.commit()
    assert (tmp_path / "weights").read_bytes() == b"abc"
    assert os.listdir(tmp_path) == ["weights"]


def test_a_partial_file_of_another_writer_is_not_committed(tmp_path: Path) -> None:
    partial = atomic.PartialFile(str(tmp_path / "weights"))
    os.unlink(partial.path)
    Path(partial.path).write_bytes(b"half of the other's")
    with pytest.raises(CheckpointError, match="another process has replaced this draft"):
        partial.commit()
    os.close(partial.fd)
    assert not (tmp_path / "weights").exists()


_HOLD = """
import sys
from cerebras_tensorflow.saver.files import atomic
held = getattr(atomic, sys.argv[1])(sys.argv[2])
print("held", flush=True)
sys.stdin.read()
"""


def _holder(kind: str, path: Path) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, kind, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_a_second_process_on_the_same_target_gets_one_clear_error(tmp_path: Path) -> None:
    with _holder("PartialFile", tmp_path / "weights") as other:
        with pytest.raises(CheckpointError, match=f"process {other.pid} is writing this file"):
            atomic.PartialFile(str(tmp_path / "weights"))
        other.kill()


def test_only_one_process_saves_into_a_folder(tmp_path: Path) -> None:
    with _holder("FolderLock", tmp_path) as other:
        with pytest.raises(CheckpointError, match=f"process {other.pid} is saving checkpoints"):
            atomic.FolderLock(str(tmp_path))
        other.kill()
    with atomic.FolderLock(str(tmp_path)):
        pass


def test_partials_of_dead_processes_are_removed_and_live_ones_stay(tmp_path: Path) -> None:
    with _holder("PartialFile", tmp_path / "dead") as dead:
        dead.kill()
    live = atomic.PartialFile(str(tmp_path / "live"))
    (tmp_path / "other.partial").write_bytes(b"not ours")
    assert atomic.remove_stale(str(tmp_path)) == [atomic.partial_path(str(tmp_path / "dead"))]
    live.commit()
    assert sorted(os.listdir(tmp_path)) == ["live", "other.partial"]


def test_a_partial_of_a_dead_process_is_taken_over(tmp_path: Path) -> None:
    Path(atomic.partial_path(str(tmp_path / "weights"))).write_bytes(b"left by a crash")
    partial = atomic.PartialFile(str(tmp_path / "weights"))
    atomic.write_all(partial.fd, b"new")
    partial.commit()
    assert (tmp_path / "weights").read_bytes() == b"new"


def test_a_partial_file_that_another_user_made_is_refused(tmp_path: Path) -> None:
    """Its maker could hold it open and read or change what we write."""
    (tmp_path / "private").write_bytes(b"mine")
    path = Path(atomic.partial_path(str(tmp_path / "weights")))
    for make in (
        lambda: path.symlink_to(tmp_path / "private"),
        lambda: path.hardlink_to(tmp_path / "private"),
        lambda: os.mkfifo(path),
        path.mkdir,
    ):
        make()
        with pytest.raises(CheckpointError, match="in the way: it belongs to another user, or is not a regular file"):
            atomic.PartialFile(str(tmp_path / "weights"))
        path.rmdir() if path.is_dir() else path.unlink()
    assert (tmp_path / "private").read_bytes() == b"mine"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
def test_a_partial_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = Path(atomic.partial_path(str(tmp_path / "weights")))
    path.write_bytes(b"")
    os.chown(path, 65534, 65534)
    with pytest.raises(CheckpointError, match="belongs to another user"):
        atomic.PartialFile(str(tmp_path / "weights"))
    assert path.stat().st_uid == 65534


def test_a_full_disk_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    partial = atomic.PartialFile(str(tmp_path / "weights"))
    with (
        open("/dev/full", "wb", buffering=0) as full,
        pytest.raises(CheckpointError, match=r"No space left on device.*Free some space"),
        atomic.reporting("weights"),
    ):
        atomic.write_all(full.fileno(), b"x")
    partial.discard()
    assert os.listdir(tmp_path) == []


def test_a_parent_that_is_a_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CheckpointError, match="file is in the place of a folder"):
        atomic.PartialFile(str(tmp_path / "file" / "weights"))


def test_pipes_folders_and_devices_are_not_replaced(tmp_path: Path) -> None:
    """As root, a rename would replace /dev/null too."""
    os.mkfifo(tmp_path / "pipe")
    for target, kind in ((tmp_path / "pipe", "pipe"), (tmp_path, "a folder"), (Path("/dev/null"), "a device")):
        with pytest.raises(CheckpointError, match=kind):
            atomic.PartialFile(str(target))
    assert (tmp_path / "pipe").is_fifo()
    assert Path("/dev/null").is_char_device()


def test_discard_removes_the_folders_that_it_created(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    partial = atomic.PartialFile(str(tmp_path / "there" / "new" / "deep" / "x"))
    other = atomic.PartialFile(str(tmp_path / "there" / "new" / "y"))
    partial.discard()
    assert (tmp_path / "there" / "new").exists()
    assert not (tmp_path / "there" / "new" / "deep").exists()
    other.commit()
    assert (tmp_path / "there" / "new" / "y").exists()
    atomic.PartialFile(str(tmp_path / "away" / "x")).discard()
    atomic.PartialFile(str(tmp_path / "there" / "x")).discard()
    assert sorted(item.name for item in tmp_path.iterdir()) == ["there"]
