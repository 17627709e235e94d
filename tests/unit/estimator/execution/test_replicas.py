"""Multi-replica training: the replicas share each batch, with the bits of one."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cerebras_tensorflow.compat import messages
from cerebras_tensorflow.errors import SettingsError
from cerebras_tensorflow.estimator.config.cs_config import CSConfig
from cerebras_tensorflow.estimator.execution import replicas
from cerebras_tensorflow.system import registry
from tests.unit.estimator import tiny
from tests.unit.estimator.csx_threads import use_threads


@pytest.fixture
def lab(home: Path) -> str:
    """Address of a simulated system in pipelined mode."""
    registry.create(home, "lab", "10.0.0.1", "pipelined")
    return "10.0.0.1"


def trained(folder: Path, **settings: Any) -> bytes:
    estimator = tiny.estimator(folder, **settings)
    estimator.train(tiny.input_fn(), steps=2)
    return np.asarray(estimator.get_variable_value("w")).tobytes()


def config(number: int) -> dict[str, Any]:
    return {"config": messages.FullConfig(target_num_replicas=number)}


def test_the_bits_do_not_depend_on_the_number_of_replicas(
    lab: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = use_threads(monkeypatch)
    expected = trained(tmp_path / "one", params={"train_input": {"micro_batch_size": 1}})
    for number, cpus, started in ((-1, 1, None), (-1, 2, 2), (-1, 16, 4), (4, 1, 4)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cpus=cpus: set(range(cpus)))
        folder = tmp_path / f"{number}-{cpus}"
        assert trained(folder, cs_ip=lab, stack_params=config(number)) == expected
        assert sizes == ([] if started is None else [started])
        sizes.clear()


def test_a_micro_batch_size_that_replicas_replace_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    shared: list[int] = []
    inputs: Any = SimpleNamespace(is_fed=True, batch_size=4, share=lambda number, _: shared.append(number))
    target: Any = SimpleNamespace(mode="train", is_cs=True)
    settings: Any = SimpleNamespace(cs=CSConfig(micro_batch_size="auto"), full_config=None)
    with pytest.MonkeyPatch.context() as patch, caplog.at_level("INFO"):
        patch.setattr(replicas, "asked", lambda *_: 2)
        patch.setattr(replicas, "check_mpi", lambda: None)
        cs = replicas.share_batches(inputs, settings, {}, target)
    assert (shared, cs.micro_batch_size) == ([2], 2)
    assert "micro_batch_size auto has no effect with replicas: it is 2 samples" in caplog.text


def test_without_mpi_one_replica_trains_and_a_batch_that_cannot_be_shared_is_refused(
    lab: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = use_threads(monkeypatch)
    with pytest.raises(SettingsError, match="target_num_replicas is 3, and a batch of 4 samples has 2 equal"):
        trained(tmp_path / "uneven", cs_ip=lab, stack_params=config(3))

    def missing() -> None:
        raise SettingsError("more than one CSX needs MPI")

    monkeypatch.setattr(replicas, "check_mpi", missing)
    assert trained(tmp_path / "no_mpi", cs_ip=lab, stack_params=config(-1))
    assert sizes == []
