"""The store of a run; the disk space that it needs is told before the start."""

import logging
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from cerebras_tensorflow import CSConfig
from cerebras_tensorflow.estimator.execution import store_choice
from cerebras_tensorflow.graph.program import Event, Residence
from cerebras_tensorflow.runtime.weight_store import file
from cerebras_tensorflow.runtime.weight_store.file import FileStore
from cerebras_tensorflow.runtime.weight_store.memory import MemoryStore
from tests.unit.compiler.small_graphs import build, compile_small, sgd, weight


def loss_of(x, step):
    loss = (x @ weight())[0, 0]
    return loss, sgd(loss, step)


def test_the_log_has_the_disk_space_of_store_and_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    program = compile_small(build(loss_of), "weight_streaming", residence=Residence.STORE)
    settings = CSConfig(weight_store="file", weight_store_dir=str(tmp_path / "store"))
    caplog.set_level(logging.INFO)
    for told_from, is_told in ((10**9, False), (1, True)):
        monkeypatch.setattr(store_choice, "_TOLD_FROM_BYTES", told_from)
        caplog.clear()
        store = store_choice.open_store(program, settings, str(tmp_path / "model_dir"), is_training=True)
        assert store is not None
        with closing(store):
            assert ("Disk: the weight store takes up to 256 B in" in caplog.text) == is_told
            assert (f"a checkpoint takes up to 264 B in {tmp_path / 'model_dir'}" in caplog.text) == is_told


@pytest.mark.parametrize("owners", [(), (0,)])
def test_only_csx_that_share_weights_take_shared_memory(owners: tuple[int, ...], tmp_path: Path) -> None:
    program = compile_small(build(loss_of), "weight_streaming", residence=Residence.MEMORY_STORE)
    program = replace(program, owners=owners)
    store = store_choice.open_store(program, CSConfig(), str(tmp_path / "model_dir"), is_training=True)
    share = store_choice.open_share(program, 0, "memory", tmp_path, 1)
    for one in (store, share):
        assert isinstance(one, MemoryStore)
        assert (one.memory is not None) == bool(owners)
        one.close()


def test_the_file_stores_of_several_csx_share_the_spare_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = compile_small(build(loss_of), "weight_streaming", residence=Residence.STORE)
    settings = CSConfig(weight_store="file", weight_store_dir=str(tmp_path / "store"))
    monkeypatch.setattr(file, "_free_memory_bytes", lambda: 4 * 4096)  # the weight takes a page
    for num_csx, is_direct in ((1, False), (4, True)):
        store = store_choice.open_store(program, settings, str(tmp_path / "model_dir"), copies=num_csx)
        share = store_choice.open_share(program, 1, "file", tmp_path / "store-1", num_csx)
        for one in (store, share):
            assert isinstance(one, FileStore)
            with closing(one):
                assert (one.cached_bytes == 0) == (is_direct and one.is_direct)
                assert is_direct or not one.is_direct


def test_rows_of_a_gather_count_as_read() -> None:
    program = compile_small(build(loss_of), "weight_streaming", residence=Residence.STORE)
    (before,) = program.bytes_read_of_each
    gather = Event("gather", 0, "rows", 0, 0, 0, row_bytes=40)
    assert replace(program, events=(*program.events, gather)).bytes_read_of_each == (before + 40,)
