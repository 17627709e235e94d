"""The cache returns a compiled Program unchanged, or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebras_tensorflow.compiler import cache, signature
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
