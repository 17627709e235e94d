"""A private CEREBRAS_HOME and the execution modes, for every test of the estimator."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebras_tensorflow.system import registry


@pytest.fixture(autouse=True)
def private_home(home: Path) -> Path:
    """No test touches the user's simulated systems."""
    return home


@pytest.fixture(params=["pipelined", "weight_streaming"])
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The execution mode in which the test runs: both, in turn."""
    monkeypatch.setenv("CEREBRAS_EXECUTION_MODE", request.param)
    return str(request.param)


@pytest.fixture
def cs_ip(mode: str, home: Path) -> str:
    """Address of a simulated system in the test's mode."""
    registry.create(home, "lab", "10.0.0.1", mode)
    return "10.0.0.1"
