"""The store's folder: foreign files in it are refused, and each failing call gives one clear error."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from cerebras_tensorflow.errors import StoreError
from cerebras_tensorflow.graph.program import WeightSpec
from cerebras_tensorflow.runtime.weight_store import blocks, folder, owner
from cerebras_tensorflow.runtime.weight_store.file import FileStore
from cerebras_tensorflow.runtime.weight_store.interface import WeightStore
from cerebras_tensorflow.runtime.weight_store.mapped import MappedStore
from tests.unit.runtime.faulty_os import FaultyOs

SPECS = (WeightSpec("w", "float32", (300, 100), 120_000), WeightSpec("scalar", "float32", (), 4))
PRECIOUS = "a thesis"
CODES = (errno.ENOSPC, errno.EIO, errno.EACCES, errno.EROFS)

Make = Callable[[Path], WeightStore]


def file_store(path: Path) -> WeightStore:
    return FileStore(SPECS, path)


def mapped_store(path: Path) -> WeightStore:
    return MappedStore(SPECS, path)


def ones(add: float = 0) -> np.ndarray:
    return np.full((300, 100), 1 + add, np.float32)


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    path = tmp_path / "home" / "thesis.tex"
    path.parent.mkdir()
    path.write_text(PRECIOUS)
    return path


@pytest.fixture
def store_folder(tmp_path: Path) -> Path:
    path = tmp_path / "weight_store"
    path.mkdir()
    return path


@pytest.mark.parametrize("make", [file_store, mapped_store])
@pytest.mark.parametrize("name", ["owner.json", "weights.scratch"])
@pytest.mark.parametrize("kind", ["symbolic link", "hard link", "dangling link", "folder", "pipe"])
def test_planted_links_and_pipes_are_refused(
    make: Make, name: str, kind: str, store_folder: Path, precious: Path
) -> None:
    planted = store_folder / name
    if kind == "symbolic link":
        planted.symlink_to(precious)
    elif kind == "hard link":
        planted.hardlink_to(precious)
    elif kind == "dangling link":
        planted.symlink_to(precious.with_name("new"))
    elif kind == "folder":
        planted.mkdir()
    else:
        os.mkfifo(planted)
    before = planted.lstat()
    with pytest.raises(StoreError, match=rf"{name}|Is a directory"):
        make(store_folder)
    assert planted.lstat().st_ino == before.st_ino
    assert precious.read_text() == PRECIOUS
    assert sorted(path.name for path in precious.parent.iterdir()) == ["thesis.tex"]


@pytest.mark.parametrize("content", [PRECIOUS, '{"name": "somebody"}', "[" * 100_000, "[1, 2]"])
def test_a_foreign_owner_json_is_not_overwritten(store_folder: Path, content: str) -> None:
    path = store_folder / "owner.json"
    path.write_text(content)
    with pytest.raises(StoreError, match=r"owner\.json: no weight store wrote this file\. .* weight_store_dir"):
        file_store(store_folder)
    assert path.read_text() == content


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away, which root alone may")
@pytest.mark.parametrize("name", ["owner.json", "weights.scratch"])
def test_files_of_another_user_are_refused(store_folder: Path, name: str) -> None:
    path = store_folder / name
    path.write_bytes(b"")
    os.chown(path, 65534, 65534)
    with pytest.raises(StoreError, match=rf"{name}: it belongs to user 65534, and this run to user 0"):
        file_store(store_folder)
    assert path.stat().st_uid == 65534


@pytest.mark.parametrize("inner", ["", "other"])
def test_a_linked_folder_is_refused_and_its_target_unchanged(tmp_path: Path, precious: Path, inner: str) -> None:
    (tmp_path / "weight_store").symlink_to(precious.parent)
    (precious.parent / "other").mkdir()
    with pytest.raises(StoreError, match=rf"a symbolic link in it leads to {precious.parent}"):
        file_store(tmp_path / "weight_store" / inner)
    assert sorted(path.name for path in precious.parent.rglob("*")) == ["other", "thesis.tex"]


def test_only_this_user_can_read_the_files(store_folder: Path) -> None:
    store = file_store(store_folder)
    assert [path.stat().st_mode & 0o077 for path in store_folder.iterdir()] == [0, 0]
    store.close()


def test_a_copied_folder_of_a_running_store_uses_its_own_files(store_folder: Path, tmp_path: Path) -> None:
    first = file_store(store_folder)
    first.write(0, ones())
    first.flush()
    shutil.copytree(store_folder, tmp_path / "copy")
    second = file_store(tmp_path / "copy")
    second.write(0, ones(add=5))
    np.testing.assert_array_equal(first.read(0), ones())
    np.testing.assert_array_equal(second.read(0), ones(add=5))
    second.close()
    np.testing.assert_array_equal(first.read(0), ones())
    assert json.loads((store_folder / "owner.json").read_text())["process"] == os.getpid()
    first.close()


def use(make: Make, path: Path) -> None:
    """Use a store as a run does; check that no value is lost without an error."""
    with closing(make(path)) as store:
        store.write(0, ones())
        store.write(1, np.float32(3))
        store.flush()
        with closing(store.snapshot()) as snapshot:
            store.write_slice(0, 100, ones(add=1)[:50])
            kept = np.concatenate([piece.copy() for piece in snapshot.pieces(0)])
            np.testing.assert_array_equal(kept.view(np.float32), ones().reshape(-1))
        store.between_steps()
        expected = ones()
        expected[100:150] = 2
        np.testing.assert_array_equal(store.read(0), expected)
        assert store.read(1) == 3
        store.flush()


@pytest.mark.parametrize("make", [file_store, mapped_store])
@pytest.mark.parametrize("is_lasting", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
def test_every_failing_call_gives_one_error_with_advice(
    make: Make, code: int, is_lasting: bool, tmp_path: Path
) -> None:
    modules = (folder, owner, blocks)
    with pytest.MonkeyPatch.context() as patch:
        counting = FaultyOs(code, None)
        counting.replace_in(patch, modules)
        use(make, tmp_path / "whole")
    assert len(counting.calls) >= 5
    for number in range(len(counting.calls)):
        path = tmp_path / str(number)
        error: StoreError | None = None
        with pytest.MonkeyPatch.context() as patch:
            faulty = FaultyOs(code, number, is_lasting)
            faulty.replace_in(patch, modules)
            try:
                use(make, path)
            except StoreError as raised:
                error = raised
        if {"unlink"} >= set(faulty.failed):
            assert error is None  # scratch files that stay cause a warning, and do not end the run
        else:
            assert os.strerror(code) in str(error), (number, faulty.failed)
            assert "weight_store_dir" in str(error) or "a new run goes on from the last" in str(error)
        del error
        use(make, path)  # the next run can use the folder
        assert not path.exists() or not list(path.iterdir()), (number, faulty.failed)


@pytest.mark.parametrize("code", CODES, ids=errno.errorcode.get)
def test_the_error_of_a_folder_that_cannot_be_made_names_it(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "mkdir", fails)
    with pytest.raises(StoreError, match=rf"cannot use {tmp_path}/new .*{os.strerror(code)}.* weight_store_dir"):
        file_store(tmp_path / "new")


def test_a_file_that_cannot_be_opened_a_second_time_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system_open, opened = os.open, []

    def fail(path: str | Path, *arguments: int, **options: int) -> int:
        if str(path).startswith("/proc/self/fd/"):
            opened.append(int(str(path).rpartition("/")[2]))
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return system_open(path, *arguments, **options)

    monkeypatch.setattr(os, "open", fail)
    monkeypatch.setattr(folder.StoreFolder, "_make_file", lambda store, _, __: (store._create(0), True))  # no O_DIRECT
    with pytest.raises(StoreError, match="Too many open files"):
        FileStore(SPECS, tmp_path / "store", is_direct=True)
    assert not (tmp_path / "store").exists()
    assert len(opened) == 1
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])
