"""Several CSX write one checkpoint: each writes what it owns, and the bytes do not depend on their number."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cerebras_tensorflow import CSConfig
from cerebras_tensorflow.errors import CerebrasError
from cerebras_tensorflow.estimator.config.run_settings import RunSettings
from cerebras_tensorflow.estimator.training.checkpoint_saver import CheckpointSaver
from cerebras_tensorflow.locations import object_location
from cerebras_tensorflow.runtime.csx import copy_shares
from cerebras_tensorflow.runtime.csx.copy_shares import HeldCopies
from cerebras_tensorflow.runtime.session import ProgramSession
from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint
from cerebras_tensorflow.saver.objects import writer as object_writer
from cerebras_tensorflow.saver.objects.store import Bucket
from cerebras_tensorflow.saver.part_writer import OtherFileError, PartWriter
from cerebras_tensorflow.saver.parts import Part
from tests.numerics.micro_batches import Cut, batches
from tests.numerics.test_micro_batches_are_exact import adam
from tests.numerics.test_several_csx_are_exact import WHOLE, cut_of, train_on
from tests.unit.faulty_proxy import FaultyProxy


@pytest.fixture(scope="module")
def cut() -> Cut:
    return cut_of(adam)


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[Part]:
    """The parts that owners are asked to write."""
    asked: list[Part] = []
    write = PartWriter.write

    def recorded(self: PartWriter, part: Part, chunks: Any) -> Any:
        asked.append(part)
        return write(self, part, chunks)

    monkeypatch.setattr(PartWriter, "write", recorded)
    return asked


def save(
    model_dir: str,
    cut: Cut,
    num_csx: int,
    stores: Path,
    checkpoint_format: str = "tensorflow",
    mode: str = "weight_streaming",
) -> None:
    """Train, and save before the second step and the third."""
    settings = RunSettings(None, CSConfig(), checkpoint_format=checkpoint_format)
    saver = CheckpointSaver(model_dir, mode, {name: name for name in cut.values}, settings)

    def save_between(session: ProgramSession, step: int) -> None:
        if step == 2:  # set outside of a step: the others do not have this value yet
            session.load("w", session.read("w") + 1)
        if step in (1, 2):
            saver.save(session, step)
            saver.wait()

    stores.mkdir()
    data, is_streamed = batches(3, WHOLE), mode == "weight_streaming"
    shared = "memory" if num_csx > 1 and is_streamed else None
    copies = None if num_csx == 1 or is_streamed else stores
    train_on(
        num_csx, cut, mode, 3, stores if is_streamed else None, data, between=save_between, shared=shared, copies=copies
    )


@pytest.mark.parametrize(
    ("checkpoint_format", "num_files", "mode"),
    [("tensorflow", 2, "weight_streaming"), ("h5", 1, "weight_streaming"), ("tensorflow", 2, "pipelined")],
)
def test_files_have_the_bytes_of_one_csx(
    cut: Cut,
    tmp_path: Path,
    parts: list[Part],
    checkpoint_format: str,
    num_files: int,
    mode: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(copy_shares, "_MIN_BYTES", 100)
    contents = []
    for num_csx in (1, 2, 3):
        folder = tmp_path / str(num_csx)
        save(str(folder), cut, num_csx, tmp_path / f"stores-{num_csx}", checkpoint_format, mode)
        contents.append({path.name: path.read_bytes() for path in folder.glob("model?ckpt-[12]*")})
        others = [part for part in parts if str(folder) in part.path]
        assert len({part.offset for part in others}) >= (3 if mode == "weight_streaming" else 2) * (num_csx > 1)
        assert [path.name for path in folder.glob(".*")] == []
    assert contents[0] == contents[1] == contents[2]
    assert len(contents[0]) == 2 * num_files


def test_a_csx_without_room_for_its_copies_lets_the_first_one_write_all(
    cut: Cut, tmp_path: Path, parts: list[Part], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy_shares, "_MIN_BYTES", 100)
    has_room = HeldCopies.has_room

    def has_one_room(self: HeldCopies, message: Any, needed_bytes: int) -> bool:
        return has_room(self, message, needed_bytes + (1 << 60) * (threading.current_thread().name == "rank 2"))

    monkeypatch.setattr(HeldCopies, "has_room", has_one_room)
    contents = []
    for num_csx in (1, 3):
        folder = tmp_path / str(num_csx)
        save(str(folder), cut, num_csx, tmp_path / f"stores-{num_csx}", "h5", "pipelined")
        contents.append({path.name: path.read_bytes() for path in folder.glob("model?ckpt-[12]*")})
        assert [path.name for path in folder.glob(".*")] == []
    assert contents[0] == contents[1]
    assert not parts, "nobody else writes"


def test_objects_have_the_names_sizes_and_bytes_of_one_csx(
    cut: Cut, tmp_path: Path, parts: list[Part], proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_writer, "_ALONE_BYTES", 1000)
    monkeypatch.setattr(object_writer, "_SMALLEST_BYTES", 700)
    found = []
    for num_csx in (1, 3):
        url = f"s3://bucket/run-{num_csx}"
        save(url, cut, num_csx, tmp_path / f"stores-{num_csx}")
        with open_checkpoint(f"{url}/model-ckpt-1") as reader:
            manifest = reader.manifest  # type: ignore[attr-defined]
            assert reader.verify() == sum(value.nbytes for value in cut.values.values())
        location = object_location(f"{url}/model-ckpt-1")
        assert location is not None
        got = [Bucket(location).get(f"{location.key}/{name}") for name in manifest.objects]
        numbers = [name.rpartition("-")[2] for name in manifest.objects]
        found.append((numbers, manifest.sizes, manifest.records, [one[0] for one in got if one is not None]))
    assert found[0] == found[1]
    assert {len(part.objects) for part in parts} == {2}  # w and its slots, 1024 bytes each


@pytest.mark.parametrize("mode", ["weight_streaming", "pipelined"])
def test_without_a_shared_folder_the_first_csx_writes_all(
    cut: Cut, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr(copy_shares, "_MIN_BYTES", 100)
    opened = PartWriter._file  # type: ignore[attr-defined]
    tries: list[str] = []

    def missing_elsewhere(self: PartWriter, part: Part) -> Any:
        tries.append(part.path)
        if len(tries) % 2:
            raise OtherFileError(f"{part.path}: cannot be opened here")
        return opened(self, part)

    save(str(tmp_path / "one"), cut, 1, tmp_path / "stores-1", mode=mode)
    monkeypatch.setattr(PartWriter, "_file", missing_elsewhere)
    save(str(tmp_path / "two"), cut, 2, tmp_path / "stores-2", mode=mode)
    assert len(tries) >= 4
    one, two = ([path.read_bytes() for path in sorted((tmp_path / n).glob("model?ckpt-1*"))] for n in ("one", "two"))
    assert one == two and len(one) == 2


@pytest.mark.parametrize("mode", ["weight_streaming", "pipelined"])
def test_an_owner_that_fails_leaves_no_half_checkpoint(
    cut: Cut, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr(copy_shares, "_MIN_BYTES", 100)

    def full(self: PartWriter, part: Part, chunks: Iterator[np.ndarray]) -> Any:
        next(chunks)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(PartWriter, "write", full)
    with pytest.raises(CerebrasError, match=r"rank 1 .*failed: .*No space left"):
        save(str(tmp_path / "run"), cut, 2, tmp_path / "stores", mode=mode)
    assert not (tmp_path / "run").exists() or [*(tmp_path / "run").iterdir()] == []


def test_another_file_of_the_same_name_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"mine")
    writer = PartWriter()
    part = Part(str(path), 4, 0, path.stat().st_ino + 1)
    with pytest.raises(OtherFileError):
        writer.write(Part.from_json(part.to_json()), iter([b"1234"]))
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(OtherFileError):
        writer.write(Part(str(tmp_path / "link"), 4, 0, path.stat().st_ino), iter([b"1234"]))
    writer.close()
    assert path.read_bytes() == b"mine"
