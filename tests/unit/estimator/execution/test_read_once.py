"""`read_once`: one of several CSX reads a checkpoint, or each reads what it needs."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from cerebras_tensorflow import CerebrasEstimator, CSConfig, CSRunConfig
from cerebras_tensorflow.errors import CheckpointError, CollectiveError
from cerebras_tensorflow.estimator.execution.owned_parts import OwnedParts
from cerebras_tensorflow.runtime.csx.checkpoint_files import OwnersRead, Source
from cerebras_tensorflow.runtime.inference.shared import SharedInference
from cerebras_tensorflow.saver.tf_h5_saver import load
from tests.unit.estimator import tiny
from tests.unit.estimator.csx_threads import use_threads


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What CSX other than the first read; these are threads."""
    names: list[str] = []
    original = OwnedParts.read

    def noted(self: OwnedParts, path: str, key: str) -> np.ndarray:
        names.append(key)
        return original(self, path, key)

    monkeypatch.setattr(OwnedParts, "read", noted)
    use_threads(monkeypatch)
    return names


def estimator(folder: Path, num_csx: int, read_once: bool) -> CerebrasEstimator:
    settings = CSConfig(
        num_csx=num_csx, min_stream_bytes=100, micro_batch_size=2, weight_store="memory", read_once=read_once
    )
    config = CSRunConfig(cs_config=settings, tf_random_seed=1, save_summary_steps=None)
    params = {"train_input": {"global_batch_size": tiny.BATCH}}
    return CerebrasEstimator(tiny.model_fn, str(folder), config=config, params=params)


def test_a_run_goes_on_with_the_bits_of_one_csx_whoever_reads(mode: str, tmp_path: Path, read: list[str]) -> None:
    results = []
    for number, (num_csx, read_once) in enumerate([(1, True), (2, True), (2, False)]):
        folder = tmp_path / str(number)
        estimator(folder, 1, read_once=True).train(tiny.input_fn(), steps=2)
        assert read == []
        later = estimator(folder, num_csx, read_once)
        later.train(tiny.input_fn(), steps=1)
        results.append({**load(str(folder)), **later.evaluate(tiny.input_fn(), steps=2)})
        expected = {"w", "out", "w/Adam", "out/Adam"} if not read_once else set()
        owned = expected & set(read)
        assert (owned == expected) if mode == "pipelined" else (bool(owned) == bool(expected))
        read.clear()
    for result in results[1:]:
        assert result.keys() == results[0].keys()
        for name, value in result.items():
            assert np.asarray(value).tobytes() == np.asarray(results[0][name]).tobytes(), name


def test_the_values_of_a_checkpoint_that_is_removed_meanwhile_are_sent(
    tmp_path: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = estimator(tmp_path, 1, read_once=True)
    first.train(tiny.input_fn(), steps=1)
    expected = first.evaluate(tiny.input_fn(), steps=2)
    note = SharedInference.note_source

    def removed(self: SharedInference, name: str, source: Source) -> None:
        note(self, name, source)
        Path(source.file).unlink(missing_ok=True)

    monkeypatch.setattr(SharedInference, "note_source", removed)
    assert estimator(tmp_path, 2, read_once=False).evaluate(tiny.input_fn(), steps=2) == expected
    assert read == []


def test_an_owner_does_not_open_a_checkpoint_that_is_gone(tmp_path: Path) -> None:
    file = tmp_path / "model.ckpt-1.index"
    source = Source(str(tmp_path / "model.ckpt-1"), "w", str(file))
    with OwnersRead(lambda _: 1, lambda *_: None) as owners:
        assert not owners.start("w", source)
        file.touch()
        assert owners.start("w", source)


def test_values_for_owners_are_sent_in_the_background_and_few_at_a_time() -> None:
    may_end, ended = threading.Event(), []

    def load(name: str) -> None:
        may_end.wait()
        ended.append(name)

    owner_of = {"mine": None, "a": 1, "b": 1, "c": 2}.get
    with OwnersRead(owner_of) as owners:
        assert not owners.set("mine", 8, lambda: None)
        for name in "abc":
            owners.make_room(100 << 20)
            if name == "c":
                assert "a" in ended
            assert owners.set(name, 100 << 20, partial(load, name))
            if name == "b":
                assert ended == []
                may_end.set()
        assert sorted(owners.finish()) == ["a", "b", "c"]


def test_an_error_of_a_value_that_is_sent_is_not_lost() -> None:
    def fail() -> None:
        raise CollectiveError("rank 1 has ended")

    with OwnersRead(lambda _: 1) as owners:
        owners.set("w", 8, fail)
        with pytest.raises(CollectiveError, match="rank 1 has ended"):
            list(owners.finish())


def test_a_checkpoint_that_a_csx_cannot_read_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"model.ckpt-2: .*read_once .* removed it. Set read_once to true"):
        OwnedParts().read(str(tmp_path / "model.ckpt-2"), "w")
