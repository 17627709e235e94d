"""A server that ends is started again, unless that happens too often within half an hour."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from csrun import worker
from csrun.plan import INPUT_WORKER, WEIGHT_SERVER


def served(folder: Path, patch: pytest.MonkeyPatch, role: str, minutes_apart: float, ends: int) -> tuple[int, str, int]:
    """Serve with a server that ends with code 7 a number of times, then lasts until the chief is done.

    Returns:
        Exit code, error text, and how often the server was started.
    """
    started = []

    def serve(*_: object) -> int | None:
        started.append(None)
        return 7 if len(started) <= ends else None

    patch.setattr(worker, "_serve", serve)
    clock = SimpleNamespace(monotonic=lambda: len(started) * minutes_apart * 60, sleep=lambda _: None)
    patch.setattr(worker, "time", clock)
    patch.setattr(worker.signal, "signal", lambda *_: None)
    (folder / worker.KINDS[role].request_file).touch()
    return *worker.serve_when_asked(folder, role, 0, "worker 0"), len(started)


@pytest.mark.parametrize(("minutes_apart", "code", "starts"), [(9, 1, 4), (11, 0, 41)])
def test_restarts_are_limited_per_half_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, minutes_apart: float, code: int, starts: int
) -> None:
    done, text, started = served(tmp_path, monkeypatch, INPUT_WORKER, minutes_apart, 40)
    assert (done, started) == (code, starts)
    assert ("ended with code 7 for the 4th time within 30 minutes; its log is" in text) == bool(code)


def test_a_weight_server_is_not_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done, text, started = served(tmp_path, monkeypatch, WEIGHT_SERVER, 1000, 40)
    assert (done, started) == (1, 1)
    assert text.startswith("worker 0 ended with code 7; its log is")
