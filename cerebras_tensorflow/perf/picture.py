"""Timelines as a PNG: the streams over time, and memory below. Needs matplotlib (the extra `pictures`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cerebras_tensorflow import files
from cerebras_tensorflow.errors import SettingsError
from cerebras_tensorflow.perf.layers import layer_spans, short_names
from cerebras_tensorflow.perf.timeline import COMPUTE, LOAD, STORE, UPDATE, WIRE, Timeline

_COLOURS = {LOAD: "#4477aa", UPDATE: "#e6ab02", STORE: "#cc6677", WIRE: "#aa3377"}
# Middle and height of each row.
_ROWS = {LOAD: (0.0, 0.8), COMPUTE: (1.4, 1.6), UPDATE: (2.8, 0.8), STORE: (3.8, 0.8), WIRE: (4.8, 0.8)}
_BELOW, _TOP = 0.6, -0.6  # the frame ends below the middle of the last row
_LABELS = {LOAD: "load", COMPUTE: "compute,\nby layer", UPDATE: "update", STORE: "store", WIRE: "wire"}
_INCHES = (12.0, 5.0)
_DOTS_PER_INCH = 110
_BINS = 600  # of the time axis; the compute row shows one layer in each
_LEAST_WIDTH = 1 / 4000  # of the time axis; a shorter span is drawn this wide
_CHARACTER_WIDTH = 1 / 150  # of the time axis, about
_LINE_WIDTH = 1 / 80  # of the time axis, about
_LONGEST_UPRIGHT = 10  # characters that fit into the height of a row
_DARK = 1.6  # sum of red, green and blue, each up to 1
_MARGIN = 0.02  # of an axis, between the data and the frame

_Unit = tuple[str, float]
_TIMES: tuple[_Unit, ...] = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6))
_SIZES: tuple[_Unit, ...] = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))


def write_picture(path: Path, *timelines: Timeline) -> None:
    """Write timelines below each other into one PNG, with the same time axis and units.

    Raises:
        SettingsError: If matplotlib is not installed.
        OSError: If it cannot be written. An earlier file stays.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError as error:
        raise SettingsError(
            f"a picture of the schedule needs matplotlib ({error}): pip install cerebras_tensorflow[pictures], or "
            "write the trace alone, which ui.perfetto.dev opens"
        ) from error
    figure = Figure(
        figsize=(_INCHES[0], _INCHES[1] * len(timelines)), layout=ConstrainedLayoutEngine(w_pad=0.15, h_pad=0.1)
    )
    FigureCanvasAgg(figure)
    ratios = [3, 2] * len(timelines)
    axes = figure.subplots(2 * len(timelines), 1, squeeze=False, gridspec_kw={"height_ratios": ratios})[:, 0]
    longest_s = max((timeline.end_s for timeline in timelines), default=0.0) or 1.0
    largest = max((size for timeline in timelines for _, size in timeline.memory), default=0) or 1
    time_unit, size_unit = _unit(_TIMES, longest_s), _unit(_SIZES, largest)
    for number, timeline in enumerate(timelines):
        _draw_streams(axes[2 * number], timeline, longest_s, time_unit)
        _draw_memory(axes[2 * number + 1], timeline, largest, time_unit, size_unit)
    for each in axes:
        each.set_xlim(-_MARGIN / 2 * longest_s / time_unit[1], (1 + _MARGIN) * longest_s / time_unit[1])
        each.set_xlabel(f"time [{time_unit[0]}]", fontsize=9)
        each.spines[["top", "right"]].set_visible(False)
        each.tick_params(length=3, pad=5, labelsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    title = "; ".join(f"{timeline.title}: {timeline.label}" for timeline in timelines)
    with files.atomic_file(path, is_durable=False) as file:
        figure.savefig(file, dpi=_DOTS_PER_INCH, metadata={"Title": title}, format="png")


def _unit(units: Sequence[_Unit], largest: float) -> _Unit:
    """Return the largest unit that is not larger than the value, or else the smallest unit."""
    return next((unit for unit in units if largest >= unit[1]), units[-1])


def _draw_streams(axes: Any, timeline: Timeline, longest_s: float, unit: _Unit) -> None:
    has_wire = any(span.stream == WIRE for span in timeline.spans)
    rows = {stream: place for stream, place in _ROWS.items() if has_wire or stream != WIRE}
    for stream, (middle, height) in rows.items():
        if stream == COMPUTE:
            _draw_layers(axes, timeline, longest_s, unit)
            continue
        least_s = longest_s * _LEAST_WIDTH
        spans = [span for span in timeline.spans if span.stream == stream]
        bars = [(span.begin_s / unit[1], max(span.end_s - span.begin_s, least_s) / unit[1]) for span in spans]
        axes.broken_barh(bars, (middle - height / 2, height), facecolors=_COLOURS[stream])
    axes.set_yticks([middle for middle, _ in rows.values()], [_LABELS[stream] for stream in rows])
    axes.set_ylim(max(middle for middle, _ in rows.values()) + _BELOW, _TOP)
    length = f"{timeline.end_s / unit[1]:.3g} {unit[0]}"
    axes.set_title(f"{timeline.title}: {timeline.label}, {length}", loc="left", fontsize=10, pad=10)


def _draw_layers(axes: Any, timeline: Timeline, longest_s: float, unit: _Unit) -> None:
    """Draw the compute row: one colour for each layer, and the layer's name where it fits."""
    from matplotlib import colormaps

    row, height = _ROWS[COMPUTE]
    spans = [span for span in timeline.spans if span.stream == COMPUTE]
    blocks = layer_spans(spans, longest_s, _BINS)
    names = short_names(block.layer for block in blocks)
    shades = {
        layer: colormaps["viridis"](0.15 + 0.75 * number / max(1, len(names) - 1)) for number, layer in enumerate(names)
    }
    for block in blocks:
        width_s = block.end_s - block.begin_s
        bar = [(block.begin_s / unit[1], width_s / unit[1])]
        axes.broken_barh(bar, (row - height / 2, height), facecolors=[shades[block.layer]])
        name, share = names[block.layer], width_s / longest_s
        is_flat = share > _CHARACTER_WIDTH * (len(name) + 1)
        if is_flat or (share > _LINE_WIDTH and len(name) <= _LONGEST_UPRIGHT):
            axes.text(
                (block.begin_s + width_s / 2) / unit[1],
                row,
                name,
                rotation=0 if is_flat else 90,
                ha="center",
                va="center",
                fontsize=7,
                color="white" if sum(shades[block.layer][:3]) < _DARK else "black",
                clip_on=True,
            )


def _draw_memory(axes: Any, timeline: Timeline, largest: int, time_unit: _Unit, size_unit: _Unit) -> None:
    if timeline.memory:
        points = [*timeline.memory, (timeline.end_s, timeline.memory[-1][1])]
        times = [at_s / time_unit[1] for at_s, _ in points]
        axes.fill_between(times, [size / size_unit[1] for _, size in points], step="post", color="#bbbbbb")
    axes.set_ylim(0, largest / size_unit[1] * 1.1)
    axes.set_ylabel(f"memory [{size_unit[0]}]", fontsize=9)
    axes.set_title(timeline.memory_label.removesuffix(" [bytes]"), loc="left", fontsize=9)
