"""The cache returns a compiled Program unchanged, or nothing."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from cerebras_tensorflow import files
from cerebras_tensorflow.compiler import cache, signature
from cerebras_tensorflow.graph.micro_batches import Carried, Gradient, Mark, MicroBatches
from cerebras_tensorflow.graph.nodes import GraphDef, NodeDef
from cerebras_tensorflow.graph.program import Event, Note, Program, Residence, WeightSpec


@pytest.fixture(autouse=True)
def private_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("CEREBRAS_HOME", str(folder))
    return folder


@pytest.fixture
def program() -> Program:
    graph = GraphDef()
    graph.node.append(NodeDef(name="a", op="NoOp"))
    weight = WeightSpec("w", "float32", (4, 2), 32)
    return Program(
        mode="weight_streaming",
        graph_def=graph,
        step_node="cs_step",
        streamed=(weight,),
        resident=(WeightSpec("step", "int64", (), 8),),
        events=(
            Event("load", 0, "a", 32, 1, 2.5, (("b", 2.5),)),
            Event("spill", 1, "cs_spill/0/store", 12, 3, 3, (("cs_spill/0/store", 3),)),
            Event("fill", 1, "cs_spill/0/load", 12, 8, 9, (("c", 8), ("d", 9))),
        ),
        window_bytes=64,
        order=("a",),
        notes=(Note("v", 8, "op (Op) takes it as a whole", ("op",)),),
        spilled=(WeightSpec("b:1", "bfloat16", (3, 2), 12),),
        value_curve=(7, 12, 0),
        held_curve=(1, 0, 5),
        overhead_bytes=5,
        residence=Residence.MAPPED_FILE,
        micro_batches=MicroBatches(
            count=4,
            gradients=(
                Gradient(
                    Mark("w", "g", "rows"), "cs_total/0/sink", "float32", ("cs_total/0/values", "cs_total/0/rows")
                ),
                Gradient(Mark("v", "h"), "cs_total/1/sink", "bfloat16", (), 1, (2, 3)),
            ),
            carried=(Carried("loss:0", "cs_carried/0", True),),
            num_first=1,
        ),
        owners=(0,),
    )


def test_a_program_is_loaded_as_it_was_saved(program: Program, tmp_path: Path) -> None:
    assert not [name for name, value in vars(program).items() if not value]  # a field that is not kept would show
    cache.save(tmp_path / "tfcs_1", program, {"schedule.txt": "text"})
    assert cache.load(tmp_path / "tfcs_1") == program
    assert (tmp_path / "tfcs_1" / "schedule.txt").read_text() == "text"
    assert [path.name for path in tmp_path.iterdir()] == ["tfcs_1"]


@pytest.mark.parametrize("name", ["program.pb", "program.json"])
def test_a_damaged_program_is_not_used(program: Program, tmp_path: Path, name: str) -> None:
    cache.save(tmp_path / "tfcs_1", program, {})
    content = (tmp_path / "tfcs_1" / name).read_bytes()
    (tmp_path / "tfcs_1" / name).write_bytes(content[:-2])
    assert cache.load(tmp_path / "tfcs_1") is None


def test_a_flipped_bit_in_the_graph_is_found(program: Program, tmp_path: Path) -> None:
    cache.save(tmp_path / "tfcs_1", program, {})
    path = tmp_path / "tfcs_1" / "program.pb"
    content = bytearray(path.read_bytes())
    content[content.index(b"a")] ^= 2
    path.write_bytes(bytes(content))
    assert cache.load(tmp_path / "tfcs_1") is None


@pytest.mark.parametrize("name", ["program.pb", "program.json", "program.sig"])
def test_a_pipe_in_place_of_a_file_is_no_program_and_blocks_nothing(
    program: Program, tmp_path: Path, name: str
) -> None:
    cache.save(tmp_path / "tfcs_1", program, {})
    (tmp_path / "tfcs_1" / name).unlink()
    os.mkfifo(tmp_path / "tfcs_1" / name)
    assert cache.load(tmp_path / "tfcs_1") is None


def test_what_a_killed_run_left_is_removed_and_what_another_run_writes_stays(program: Program, tmp_path: Path) -> None:
    left = tmp_path / ".tfcs_1.7.partial"
    left.mkdir()
    (left / "program.pb").write_bytes(b"half")
    with files.draft_folder(tmp_path / "tfcs_1") as writing:
        assert cache.save(tmp_path / "tfcs_1", program, {})
        assert sorted(tmp_path.iterdir()) == sorted([writing, tmp_path / "tfcs_1"])


def test_the_last_of_two_writers_is_kept(program: Program, tmp_path: Path) -> None:
    for text in ("first", "last"):
        assert cache.save(tmp_path / "tfcs_1", program, {"schedule.txt": text})
    assert (tmp_path / "tfcs_1" / "schedule.txt").read_text() == "last"
    assert cache.load(tmp_path / "tfcs_1") == program


def test_without_locks_a_writer_leaves_the_folder_of_another(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(fd: int, operation: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(files.fcntl, "flock", flock)
    with files.draft_folder(tmp_path / "tfcs_1") as writing:
        assert cache.save(tmp_path / "tfcs_1", program, {})
        assert writing.is_dir()


def test_failing_to_save_a_program_is_a_warning(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(path: Path, content: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(Path, "write_bytes", full)
    assert not cache.save(tmp_path / "tfcs_1", program, {})
    assert "No space left on device" in caplog.text and "the next run compiles again" in caplog.text
    assert not list(tmp_path.iterdir())


def test_a_program_of_another_format_is_not_used(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "VERSION", cache.VERSION - 1)
    cache.save(tmp_path / "tfcs_1", program, {})
    monkeypatch.undo()
    assert cache.load(tmp_path / "tfcs_1") is None


def test_a_missing_folder_has_no_program(tmp_path: Path) -> None:
    assert cache.load(tmp_path / "tfcs_1") is None


def test_a_program_signed_with_another_key_is_not_used(program: Program, private_home: Path, tmp_path: Path) -> None:
    cache.save(tmp_path / "tfcs_1", program, {})
    (private_home / signature.KEY_FILE).unlink()
    assert cache.load(tmp_path / "tfcs_1") is None


def test_a_program_moved_to_another_folder_is_not_used(program: Program, tmp_path: Path) -> None:
    cache.save(tmp_path / "tfcs_1", program, {})
    (tmp_path / "tfcs_1").rename(tmp_path / "tfcs_2")
    assert cache.load(tmp_path / "tfcs_2") is None


def test_a_key_that_others_can_read_is_not_used(program: Program, private_home: Path, tmp_path: Path) -> None:
    cache.save(tmp_path / "tfcs_1", program, {})
    key = private_home / signature.KEY_FILE
    assert key.stat().st_mode & 0o777 == 0o600
    key.chmod(0o644)
    assert cache.load(tmp_path / "tfcs_1") is None


def test_without_a_writable_home_only_the_cache_is_lost(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CEREBRAS_HOME", str(tmp_path / "file" / "home"))
    cache.save(tmp_path / "tfcs_1", program, {})
    assert cache.load(tmp_path / "tfcs_1") is None
    assert (tmp_path / "tfcs_1" / "program.pb").exists()


def test_a_deeply_nested_manifest_is_not_read(program: Program, tmp_path: Path) -> None:
    cache.save(tmp_path / "tfcs_1", program, {})
    (tmp_path / "tfcs_1" / "program.json").write_text("[" * 100_000)
    assert cache.load(tmp_path / "tfcs_1") is None
