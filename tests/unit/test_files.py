"""files: complete files under final names, nothing else."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import h5py
import pytest

from cerebras_tensorflow import files


def test_content_replaces_a_file_as_a_whole(tmp_path: Path) -> None:
    target = tmp_path / "settings.yaml"
    target.write_text("old")
    with files.atomic_file(target) as file:
        file.write(b"new")
        file.flush()
        assert target.read_text() == "old"
    assert target.read_bytes() == b"new"
    files.write_text(target, "text \u00e4")
    assert target.read_text(encoding="utf-8") == "text \u00e4"
    assert os.listdir(tmp_path) == ["settings.yaml"]


def test_an_error_keeps_the_old_file_and_leaves_no_draft(tmp_path: Path) -> None:
    target = tmp_path / "settings.yaml"
    target.write_text("old")
    with pytest.raises(KeyError), files.atomic_file(target) as file:
        file.write(b"new")
        raise KeyError
    with pytest.raises(KeyError), files.atomic_path(target) as draft:
        draft.write_text("new")
        raise KeyError
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["settings.yaml"]


def test_the_next_write_removes_the_draft_of_a_killed_one(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from cerebras_tensorflow import files\n"
        "with files.atomic_file(sys.argv[1]): os.kill(os.getpid(), signal.SIGKILL)"
    )
    target = tmp_path / "performance.json"
    subprocess.run([sys.executable, "-c", code, str(target)])
    assert len(os.listdir(tmp_path)) == 1
    with files.atomic_file(target) as file:
        file.write(b"a draft in use stays")
        files.write_text(target, "new")
    assert target.read_text() == "a draft in use stays"
    assert os.listdir(tmp_path) == ["performance.json"]


def test_a_library_may_write_the_draft_by_its_path(tmp_path: Path) -> None:
    with files.atomic_path(tmp_path / "data.h5") as draft:
        assert draft.parent == tmp_path
        draft.write_bytes(b"values")
        assert not (tmp_path / "data.h5").exists()
    assert (tmp_path / "data.h5").read_bytes() == b"values"


def test_a_second_writer_of_a_name_leaves_the_draft_of_a_library(tmp_path: Path) -> None:
    target = tmp_path / "data.h5"
    with files.atomic_path(target) as draft, h5py.File(draft, "w", locking=False) as file:
        file["x"] = 7
        with files.atomic_path(target) as other:
            other.write_bytes(b"the other's")
    with h5py.File(target) as file:
        assert file["x"][()] == 7
    assert os.listdir(tmp_path) == ["data.h5"]


def test_the_folder_of_a_killed_writer_is_removed_and_that_of_a_live_one_stays(tmp_path: Path) -> None:
    left = tmp_path / ".out.7.partial"
    left.mkdir()
    (left / "shard").write_bytes(b"half")
    with files.draft_folder(tmp_path / "out") as first:
        (first / "shard").write_bytes(b"first")
        with files.draft_folder(tmp_path / "out") as second:
            assert sorted(tmp_path.iterdir()) == sorted([first, second])
        first.rename(tmp_path / "out")
    assert os.listdir(tmp_path) == ["out"]
    assert (tmp_path / "out" / "shard").read_bytes() == b"first"


def test_without_locks_the_folder_of_another_writer_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(fd: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(files.fcntl, "flock", flock)
    with files.draft_folder(tmp_path / "out") as first, files.draft_folder(tmp_path / "out") as second:
        assert first.is_dir() and second.is_dir()
    assert not list(tmp_path.iterdir())


def test_a_folder_that_a_clean_up_takes_for_a_dead_one_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    mkdir = os.mkdir

    def taken_once(path: str) -> None:
        mkdir(path)
        made.append(path)
        if len(made) == 1:
            files._remove_left_folders(str(tmp_path), ".out.")

    monkeypatch.setattr(files.os, "mkdir", taken_once)
    with files.draft_folder(tmp_path / "out") as draft:
        assert str(draft) == made[1]
    with pytest.raises(FileNotFoundError), files.draft_folder(tmp_path / "missing" / "out"):
        pass


def test_permissions_hold_from_the_first_byte_on(tmp_path: Path) -> None:
    with files.atomic_file(tmp_path / "token", permissions=0o600) as file:
        assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == 0o600
        file.write(b"secret")
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600


def test_a_symbolic_link_is_replaced_and_its_file_left_alone(tmp_path: Path) -> None:
    (tmp_path / "private").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "private")
    files.write_text(tmp_path / "link", "new")
    assert (tmp_path / "private").read_text() == "mine"
    assert (tmp_path / "link").read_text() == "new" and not (tmp_path / "link").is_symlink()


def test_a_new_file_is_not_made_through_a_link_or_over_another(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        files.open_new(tmp_path / "link")
    assert not (tmp_path / "elsewhere").exists()


def test_a_folder_or_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(IsADirectoryError, match="a folder has this name"):
        files.write_text(tmp_path / "folder", "x")
    with pytest.raises(FileExistsError, match="a device, pipe or socket has this name"):
        files.write_text(tmp_path / "pipe", "x")
    assert sorted(os.listdir(tmp_path)) == ["folder", "pipe"]


def test_the_last_of_two_blocks_that_close_files_to_others_restores_the_umask() -> None:
    before = os.umask(0)
    try:
        first, second = files.closed_to_others(), files.closed_to_others()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        inside = os.umask(0o002)
        second.__exit__(None, None, None)
        assert (inside, os.umask(0)) == (0o002, 0)
    finally:
        os.umask(before)


def test_a_long_name_fits(tmp_path: Path) -> None:
    name = "\u00e4" * 120
    files.write_text(tmp_path / name, "x")
    assert os.listdir(tmp_path) == [name]


def test_the_end_of_the_process_removes_the_draft_of_a_background_thread(tmp_path: Path) -> None:
    code = (
        "import sys, threading; from cerebras_tensorflow import files\n"
        "begun = threading.Event()\n"
        "def write():\n"
        "    with files.atomic_file(sys.argv[1]):\n"
        "        begun.set(); threading.Event().wait()\n"
        "threading.Thread(target=write, daemon=True).start(); begun.wait(); sys.exit(143)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "checkpoint")], timeout=60)
    assert done.returncode == 143
    assert list(tmp_path.iterdir()) == []


def test_a_failing_disk_is_an_error_and_a_file_system_without_flush_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = errno.EINVAL

    def fsync(fd: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(files.os, "fsync", fsync)
    files.write_text(tmp_path / "kept", "text")
    assert (tmp_path / "kept").read_text() == "text"
    code = errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        files.write_text(tmp_path / "lost", "text")
    assert os.listdir(tmp_path) == ["kept"]


def test_a_file_is_created_once_durable_and_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed = []
    monkeypatch.setattr(files, "flush", lambda fd: flushed.append(os.readlink(f"/proc/self/fd/{fd}")))
    files.create_once(tmp_path / "key", b"first")
    files.create_once(tmp_path / "key", b"second")
    assert (tmp_path / "key").read_bytes() == b"first"
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["key"]
    assert len(flushed) == 4 and flushed[1] == flushed[3] == str(tmp_path)
