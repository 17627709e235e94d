"""`read_once`: one of several CSX reads a checkpoint, or each reads what it needs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cerebras_tensorflow import CerebrasEstimator, CSConfig, CSRunConfig
from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.estimator.execution.owned_parts import OwnedParts
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


def test_a_checkpoint_that_a_csx_cannot_read_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"model.ckpt-2: .*read_once .* set it to true"):
        OwnedParts().read(str(tmp_path / "model.ckpt-2"), "w")
