"""The picture of a step: units, labels, layers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from cerebras_tensorflow.errors import SettingsError
from cerebras_tensorflow.perf import picture
from cerebras_tensorflow.perf.timeline import Span, Timeline

SPANS = (
    Span("load", "model/layer_0/kernel", 0.0, 0.010, 1000),
    Span("compute", "model/layer_0/MatMul", 0.010, 0.030),
    Span("compute", "model/layer_1/MatMul", 0.030, 0.080),
    Span("update", "model/layer_1/kernel", 0.080, 0.090),
    Span("store", "model/layer_1/kernel", 0.085, 0.100, 1000),
)
LONG = Timeline("plan", False, SPANS, ((0.0, 2_000_000), (0.05, 30_000_000)), "weights, planned [bytes]")
SHORT = Timeline("step 7", True, SPANS[:2], ((0.0, 4_000),), "resident set [bytes]")


@pytest.fixture
def figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The figure that a picture of two timelines was saved from."""
    figures = pytest.importorskip("matplotlib.figure")
    saved = []
    monkeypatch.setattr(figures.Figure, "savefig", lambda figure, *_, **__: saved.append(figure))
    picture.write_picture(tmp_path / "x.png", LONG, SHORT)
    return saved[0]


def test_all_axes_have_one_unit_of_time_and_one_of_memory(figure: Any) -> None:
    axes = figure.axes
    assert {each.get_xlabel() for each in axes} == {"time [ms]"}
    assert [each.get_ylabel() for each in axes[1::2]] == ["memory [MB]"] * 2
    assert len({each.get_xlim() for each in axes}) == 1
    assert len({each.get_ylim() for each in axes[1::2]}) == 1


def test_nothing_touches_the_frame(figure: Any) -> None:
    low, high = figure.axes[0].get_xlim()
    assert low < 0
    assert high > 100  # ms
    assert figure.axes[1].get_ylim()[1] > 30  # MB
    assert not any(each.spines["top"].get_visible() for each in figure.axes)


def test_compute_is_shown_by_layer(figure: Any) -> None:
    assert [text.get_text() for text in figure.axes[0].texts] == ["layer_0", "layer_1"]
    rows = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert rows == ["load", "compute,\nby layer", "update", "store"]


def test_the_error_of_a_missing_matplotlib_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SettingsError, match=r"needs matplotlib .*pip install cerebras_tensorflow\[pictures\]"):
        picture.write_picture(tmp_path / "x.png", LONG)
