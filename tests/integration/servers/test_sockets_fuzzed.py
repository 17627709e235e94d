"""Mutated bytes and calls get nothing from our servers, and the servers go on answering."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.integration.servers import socket_fuzz


@pytest.fixture(autouse=True)
def private_home(home: Path) -> None:
    """The servers use a private CEREBRAS_HOME."""


def test_servers_answer_after_mutated_calls(tmp_path: Path) -> None:
    ends = socket_fuzz.fuzz(tmp_path, 1, seed=1, kinds=(socket_fuzz.weights, socket_fuzz.cluster))
    assert any("without the secret: UNAUTHENTICATED" in end for end in ends)
    assert any("with the secret" in end and end.endswith("OK") for end in ends)


@pytest.mark.slow
def test_ten_minutes_of_mutated_calls_get_no_access(tmp_path: Path) -> None:
    ends = socket_fuzz.fuzz(tmp_path, 600, seed=int(time.time()))
    print(f"{sum(ends.values())} attacks, {len(ends)} different ends")
    assert len(ends) > 20
