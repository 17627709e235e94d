"""Timelines as a PNG: time against streams, the memory curve below. Needs matplotlib: the extra `pictures`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cerebras_tensorflow.errors import SettingsError
from cerebras_tensorflow.perf.timeline import COMPUTE, LOAD, STORE, STREAMS, UPDATE, Timeline

_COLOURS = {LOAD: "#4477aa", COMPUTE: "#66a61e", UPDATE: "#e6ab02", STORE: "#cc6677"}
_INCHES = (12.0, 4.5)


def write_picture(path: Path, *timelines: Timeline) -> None:
    """Write timelines below each other into one PNG.

    Raises:
        SettingsError: If matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SettingsError(
            f"a picture of the schedule needs matplotlib ({error}): pip install cerebras_tensorflow[pictures], or "
            "write the trace alone, which ui.perfetto.dev opens"
        ) from error
    figure = Figure(figsize=(_INCHES[0], _INCHES[1] * len(timelines)), layout="constrained")
    FigureCanvasAgg(figure)
    ratios = [3, 2] * len(timelines)
    axes = figure.subplots(2 * len(timelines), 1, squeeze=False, gridspec_kw={"height_ratios": ratios})[:, 0]
    longest_s = max((timeline.end_s for timeline in timelines), default=0.0) or 1.0
    for number, timeline in enumerate(timelines):
        _streams(axes[2 * number], timeline, longest_s)
        _memory(axes[2 * number + 1], timeline, longest_s)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Title": "; ".join(f"{t.title}: {t.label}" for t in timelines)})


def _streams(axes: Any, timeline: Timeline, longest_s: float) -> None:
    for row, stream in enumerate(STREAMS):
        bars = [(s.begin_s, max(s.end_s - s.begin_s, longest_s / 4000)) for s in timeline.spans if s.stream == stream]
        axes.broken_barh(bars, (row - 0.4, 0.8), facecolors=_COLOURS[stream])
    axes.set_yticks(range(len(STREAMS)), STREAMS)
    axes.invert_yaxis()
    axes.set_xlim(0, longest_s)
    axes.set_title(f"{timeline.title}: {timeline.label}, {timeline.end_s:.3g} s", loc="left", fontsize=10)


def _memory(axes: Any, timeline: Timeline, longest_s: float) -> None:
    if timeline.memory:
        points = [*timeline.memory, (timeline.end_s, timeline.memory[-1][1])]
        axes.fill_between([at for at, _ in points], [size / 1e9 for _, size in points], step="post", color="#bbbbbb")
    axes.set_xlim(0, longest_s)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("GB")
    axes.set_xlabel(f"time [s]; memory: {timeline.memory_label}", fontsize=9)
