"""Charts of this machine: a planned or measured timeline, memory, losses, speed."""

from __future__ import annotations

from typing import Any

from cerebras_tensorflow.perf.html.content import RunRecord
from cerebras_tensorflow.perf.html.figure import Figure, bar, scatter
from cerebras_tensorflow.perf.html.style import COLORS, chart, of_kind, shown
from cerebras_tensorflow.perf.layers import layer_spans
from cerebras_tensorflow.perf.timeline import COMPUTE, STREAMS, WIRE, Timeline
from cerebras_tensorflow.units import format_bytes, format_seconds

_BINS = 400  # a picture shows no more
_MOST_WEIGHTS = 40
_MOST_SPANS = 1500  # of a stream; shorter ones are left out


def step_timeline(timeline: Timeline) -> Figure:
    """Return the streams of a step over time."""
    bars = []
    shown_streams = [stream for stream in STREAMS if stream != WIRE or timeline.busy_s((WIRE,))]
    for stream in shown_streams:
        spans = [
            (span.name, span.begin_s, span.end_s, span.num_bytes) for span in timeline.spans if span.stream == stream
        ]
        if stream == COMPUTE and len(spans) > _BINS:
            merged = layer_spans([s for s in timeline.spans if s.stream == COMPUTE], timeline.end_s, _BINS)
            spans = [(item.layer or "other", item.begin_s, item.end_s, 0) for item in merged]
        spans = sorted(spans, key=lambda span: span[1] - span[2])[:_MOST_SPANS]
        texts = [
            f"{shown(name)}<br>{format_seconds(end - begin)}" + (f"<br>{format_bytes(size)}" if size else "")
            for name, begin, end, size in spans
        ]
        bars.append(
            bar(
                name=stream,
                orientation="h",
                y=[stream] * len(spans),
                base=[begin * 1000 for _, begin, _, _ in spans],
                x=[(end - begin) * 1000 for _, begin, end, _ in spans],
                marker={"color": of_kind(stream), "line": {"width": 0.3 if stream == COMPUTE else 0, "color": "white"}},
                hovertext=texts,
                hoverinfo="text",
            )
        )
    figure = chart(bars)
    figure.update_layout(barmode="overlay", height=280, showlegend=False)
    figure.update_xaxes(title=f"milliseconds, {shown(timeline.label)}")
    figure.update_yaxes(autorange="reversed", automargin=True, ticksuffix=" ")
    return figure


def memory_curve(timeline: Timeline) -> Figure:
    """Return the memory of this machine over a step."""
    line = scatter(
        x=[at * 1000 for at, _ in timeline.memory],
        y=[held / 1e6 for _, held in timeline.memory],
        line={"shape": "hv", "color": COLORS[0]},
        fill="tozeroy",
    )
    figure = chart([line])
    figure.update_layout(height=280)
    figure.update_xaxes(title=f"milliseconds, {shown(timeline.label)}")
    figure.update_yaxes(title="MB", rangemode="tozero")
    return figure


def losses(record: RunRecord) -> Figure:
    """Return the loss over the steps of a run."""
    return _line(record, record.losses, "loss, measured", COLORS[4])


def speed(record: RunRecord) -> Figure:
    """Return the speed over the steps of a run."""
    return _line(record, record.samples_per_s, "samples/s, measured", COLORS[0])


def sparsity(record: RunRecord) -> Figure:
    """Return the share of zeros of the sparse weights, in the order of the model."""
    shares = record.sparsity[:_MOST_WEIGHTS]
    names = [shown(one.name) for one in shares]
    zeros = bar(
        name="zeros",
        orientation="h",
        y=names,
        x=[one.actual * 100 for one in shares],
        marker={"color": COLORS[0]},
        hovertext=[f"{shown(one.name)}<br>{one.algorithm}<br>{one.actual:.2%} zeros" for one in shares],
        hoverinfo="text",
    )
    aims = [one for one in shares if one.target is not None]
    target = scatter(
        name="target",
        mode="markers",
        y=[shown(one.name) for one in aims],
        x=[(one.target or 0) * 100 for one in aims],
        marker={"symbol": "line-ns-open", "size": 16, "color": COLORS[4], "line": {"width": 3}},
    )
    figure = chart([zeros, target])
    figure.update_layout(height=max(220, 110 + 22 * len(names)), legend={"orientation": "h", "y": 1.12})
    of = "" if len(shares) == len(record.sparsity) else f", {len(shares)} of {len(record.sparsity)} sparse weights"
    figure.update_xaxes(title=f"percent zeros{of}", range=[0, 100])
    figure.update_yaxes(autorange="reversed", automargin=True, ticksuffix=" ")
    return figure


def _line(record: RunRecord, values: Any, title: str, color: str) -> Figure:
    mode = "lines+markers" if len(record.steps) < 60 else "lines"
    figure = chart([scatter(x=list(record.steps), y=list(values), mode=mode, line={"color": color})])
    figure.update_layout(height=300)
    figure.update_xaxes(title="step")
    figure.update_yaxes(title=title)
    return figure
