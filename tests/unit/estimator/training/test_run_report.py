"""A run leaves report.html in its model_dir, and a compilation in its own folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebras_tensorflow.errors import PlacementError
from tests.unit.estimator import tiny

pytest.importorskip("plotly", reason="reports need plotly")


def test_a_run_and_a_compilation_write_reports_unless_they_are_switched_off(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CEREBRAS_REPORT", "1")
    model = tiny.estimator(tmp_path / "run")
    model.compile(tiny.input_fn())
    (compiled,) = (tmp_path / "run").rglob("report.html")
    assert compiled.parent.name.startswith("tfcs_")
    assert 'id="measured"' not in compiled.read_text()
    monkeypatch.setenv("CEREBRAS_TRACE_STEP", "2")
    model.train(tiny.input_fn(), steps=3)
    text = (tmp_path / "run" / "report.html").read_text()
    assert 'id="simulated"' in text and 'id="measured"' in text
    assert "Loss" in text and "Timeline: step 2" in text
    monkeypatch.setenv("CEREBRAS_REPORT", "0")
    tiny.estimator(tmp_path / "other").train(tiny.input_fn(), steps=1)
    assert not (tmp_path / "other" / "report.html").exists()


def test_a_compilation_for_the_wafer_is_refused_where_a_run_on_the_cpu_goes_on(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PlacementError("too large")

    monkeypatch.setattr("cerebras_tensorflow.system.wafer.pipelined.place", refuse)
    model = tiny.estimator(tmp_path / "run")
    with pytest.raises(PlacementError, match="too large"):
        model.compile(tiny.input_fn())
    model.train(tiny.input_fn(), steps=1)
    text = next((tmp_path / "run").rglob("compile_report.txt")).read_text()
    assert "Not placed: too large" in text
