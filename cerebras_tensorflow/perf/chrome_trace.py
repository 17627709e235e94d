"""A timeline as Chrome-trace JSON. ui.perfetto.dev and chrome://tracing open it.

Source: "Trace Event Format", Google, 2016: complete events (ph X), counters (ph C), names (ph M). Times are in
microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cerebras_tensorflow import files
from cerebras_tensorflow.errors import SettingsError
from cerebras_tensorflow.perf.layers import layer_spans
from cerebras_tensorflow.perf.timeline import COMPUTE, STREAMS, WIRE, Span, Timeline, lanes

_LANES_EACH = 1000  # thread numbers reserved for each stream
_MICROSECONDS = 1e6
_MAX_BYTES = 1 << 30  # of a file that is read
_BINS = 2000  # of a step's time; each shows the layer that takes most of it


def write_chrome_trace(path: Path, *timelines: Timeline) -> None:
    """Write timelines into one file, each as a separate process. Viewers show a plan and a measured step together.

    Raises:
        OSError: If writing fails. An existing file then stays as it was.
    """
    events = [event for number, timeline in enumerate(timelines) for event in _events(timeline, number + 1)]
    content = {"traceEvents": events, "displayTimeUnit": "ms"}
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(path, json.dumps(content, separators=(",", ":")), is_durable=False)


def read_chrome_trace(path: Path) -> list[Timeline]:
    """Return the timelines of a file that `write_chrome_trace` wrote.

    Raises:
        SettingsError: If the file cannot be read, or is not such a trace.
    """
    try:
        events = json.loads(files.read_regular(path, _MAX_BYTES))["traceEvents"]
        titles = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
        processes: dict[Any, list[dict[str, Any]]] = {process: [] for process in titles}
        for event in events:
            processes[event["pid"]].append(event)
        return [_timeline(title, processes[process]) for process, title in titles.items()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SettingsError(f"{path} is not a trace that this program wrote: {error!r}") from error


def _timeline(title: str, events: list[dict[str, Any]]) -> Timeline:
    name, _, label = title.rpartition(": ")
    spans = [
        Span(
            event["cat"],
            event["name"],
            event["ts"] / _MICROSECONDS,
            (event["ts"] + event["dur"]) / _MICROSECONDS,
            event.get("args", {}).get("bytes", 0),
        )
        for event in events
        if event["ph"] == "X" and event["cat"] in STREAMS
    ]
    counters = [event for event in events if event["ph"] == "C"]
    memory = tuple((event["ts"] / _MICROSECONDS, event["args"]["bytes"]) for event in counters)
    unit = counters[0]["name"].removeprefix("memory: ") if counters else "bytes"
    return Timeline(name, label == "measured", tuple(spans), memory, unit)


def _events(timeline: Timeline, process: int) -> Iterator[dict[str, Any]]:
    yield _name("process_name", process, 0, f"{timeline.title}: {timeline.label}")
    yield {"ph": "M", "name": "process_sort_index", "pid": process, "tid": 0, "args": {"sort_index": process}}
    yield from _layer_events(timeline, process)
    for number, stream in enumerate(STREAMS):
        first = (number + 1) * _LANES_EACH
        placed = lanes([span for span in timeline.spans if span.stream == stream])
        if stream == WIRE and not placed:
            continue
        for lane in range(max((lane for lane, _ in placed), default=0) + 1):
            yield _name("thread_name", process, first + lane, stream if not lane else f"{stream} ({lane + 1})")
        for lane, span in placed:
            event: dict[str, Any] = {
                "ph": "X",
                "name": span.name,
                "cat": stream,
                "pid": process,
                "tid": first + lane,
                "ts": round(span.begin_s * _MICROSECONDS, 3),
                "dur": round((span.end_s - span.begin_s) * _MICROSECONDS, 3),
            }
            if span.num_bytes:
                event["args"] = {"bytes": span.num_bytes}
            yield event
    for at_s, num_bytes in timeline.memory:
        yield {
            "ph": "C",
            "name": f"memory: {timeline.memory_label}",
            "pid": process,
            "tid": 0,
            "ts": round(at_s * _MICROSECONDS, 3),
            "args": {"bytes": num_bytes},
        }


def _layer_events(timeline: Timeline, process: int) -> Iterator[dict[str, Any]]:
    """Yield the step and the layer that is computed at each time, above the ops."""
    spans = [span for span in timeline.spans if span.stream == COMPUTE]
    if not spans:
        return
    layers = [(span.layer or "other", span.begin_s, span.end_s) for span in layer_spans(spans, timeline.end_s, _BINS)]
    rows = [("step", [(timeline.title, 0.0, timeline.end_s)]), ("layers", layers)]
    for thread, (kind, intervals) in enumerate(rows, 1):
        yield _name("thread_name", process, thread, kind)
        for name, begin_s, end_s in intervals:
            yield {
                "ph": "X",
                "name": name,
                "cat": kind,
                "pid": process,
                "tid": thread,
                "ts": round(begin_s * _MICROSECONDS, 3),
                "dur": round((end_s - begin_s) * _MICROSECONDS, 3),
            }


def _name(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}
