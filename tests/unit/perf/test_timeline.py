"""Timelines: planned from a schedule and rates, written and read back."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cerebras_tensorflow.errors import SettingsError
from cerebras_tensorflow.graph.nodes import GraphDef
from cerebras_tensorflow.graph.program import Event, Program, WeightSpec
from cerebras_tensorflow.perf.chrome_trace import read_chrome_trace, write_chrome_trace
from cerebras_tensorflow.perf.picture import write_picture
from cerebras_tensorflow.perf.planned_timeline import StreamRates, plan_timeline
from cerebras_tensorflow.perf.timeline import Span, Timeline, lanes

RATES = StreamRates(read_bytes_per_s=100.0, write_bytes_per_s=50.0, update_bytes_per_s=400.0)
WEIGHTS = tuple(WeightSpec(name, "float32", (25,), 100) for name in "ab")


def program(window_bytes: int) -> Program:
    """Reads a at op 0 and b at op 1, updates b at op 2 and a at op 3."""
    events = (
        Event("load", 0, "load_a", 100, 0, 0),
        Event("load", 1, "load_b", 100, 1, 1),
        Event("update", 1, "update_b", 100, 2, 2),
        Event("update", 0, "update_a", 100, 3, 3),
    )
    order = ("forward_a", "forward_b", "apply_b/cs_rows_0/apply", "apply_b", "apply_a")
    return Program("weight_streaming", GraphDef(), None, WEIGHTS, (), events, window_bytes, order)


def spans(timeline: Timeline, stream: str) -> list[tuple[str, float, float]]:
    return [(span.name, span.begin_s, span.end_s) for span in timeline.spans if span.stream == stream]


def test_loads_run_ahead_of_computation_within_the_window() -> None:
    wide = plan_timeline(program(200), {"forward_a": 5.0, "forward_b": 1.0}, RATES, "p")
    # Two weights fit: b is loaded while a is used.
    assert spans(wide, "load")[:2] == [("a", 0.0, 1.0), ("b", 1.0, 2.0)]
    assert spans(wide, "compute") == [("forward_a", 1.0, 6.0), ("forward_b", 6.0, 7.0)]
    narrow = plan_timeline(program(100), {"forward_a": 5.0, "forward_b": 1.0}, RATES, "p")
    # One fits: b waits until a has been used.
    assert spans(narrow, "load")[:2] == [("a", 0.0, 1.0), ("b", 6.0, 7.0)]
    assert spans(narrow, "compute") == [("forward_a", 1.0, 6.0), ("forward_b", 7.0, 8.0)]
    assert narrow.end_s > wide.end_s


def test_an_update_reads_and_computes_and_writes_in_the_background() -> None:
    timeline = plan_timeline(program(100), {}, RATES, "p")
    update_b, update_a = spans(timeline, "update")
    store_b, store_a = spans(timeline, "store")
    assert update_b == ("b", 3.0, 3.5)  # reads and writes 100 bytes each at 400 bytes/s
    assert store_b == ("b", 3.5, 5.5)
    assert update_a[1] < store_b[2]  # does not wait for the write of b
    assert store_a[1] >= store_b[2]  # but writes run one after the other


def test_the_memory_curve_stays_within_the_window_and_ends_at_zero() -> None:
    for window in (100, 200):
        timeline = plan_timeline(program(window), {"forward_a": 5.0}, RATES, "p")
        assert max(size for _, size in timeline.memory) == window
        assert timeline.memory[-1][1] == 0
        assert [at for at, _ in timeline.memory] == sorted(at for at, _ in timeline.memory)
    live = plan_timeline(
        program(100), {"forward_a": 5.0}, RATES, "p", {"forward_a": 7, "forward_b": 1000, "apply_a": 0}
    )
    assert max(size for _, size in live.memory) == 1100
    assert "values between ops" in live.memory_label


def test_overlap_is_the_share_of_moves_beside_computation() -> None:
    def of(*parts: tuple[str, float, float]) -> float:
        return Timeline("t", True, tuple(Span(stream, "x", a, b) for stream, a, b in parts)).overlap()

    assert of(("load", 0, 1), ("compute", 1, 2)) == 0
    assert of(("load", 0, 2), ("compute", 1, 3)) == 0.5
    assert of(("load", 1, 2), ("store", 1, 3), ("update", 0, 4)) == 1
    assert of(("compute", 0, 1)) == 1


def test_overlapping_spans_get_separate_lanes() -> None:
    first, second, third = Span("load", "1", 0, 2), Span("load", "2", 1, 3), Span("load", "3", 2, 4)
    assert lanes([third, first, second]) == [(0, first), (1, second), (0, third)]


def test_a_trace_file_keeps_a_plan_and_a_measurement(tmp_path: Path) -> None:
    planned = plan_timeline(program(100), {"forward_a": 5.0}, RATES, "gpt2: small")
    measured = Timeline(
        "step 7", True, (Span("load", "a", 0.0, 0.25, 100), Span("load", "b", 0.125, 0.5)), ((0.0, 5), (0.25, 9)), "rss"
    )
    path = tmp_path / "new" / "trace.json"
    write_chrome_trace(path, planned, measured)
    again, step = read_chrome_trace(path)
    assert step == measured
    assert (again.title, again.is_measured, again.memory) == (planned.title, False, planned.memory)
    assert {(s.stream, s.name, s.num_bytes) for s in again.spans} == {
        (s.stream, s.name, s.num_bytes) for s in planned.spans
    }
    events = json.loads(path.read_text())["traceEvents"]
    processes = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert processes == ["gpt2: small: planned (from rates; nothing was run)", "step 7: measured"]
    threads = {event["args"]["name"] for event in events if event["name"] == "thread_name" and event["pid"] == 2}
    assert threads == {"load", "load (2)", "compute", "update", "store"}
    complete = [event for event in events if event["ph"] == "X"]
    assert all(event["dur"] > 0 and {"name", "cat", "ts", "pid", "tid"} <= set(event) for event in complete)


@pytest.mark.parametrize("content", ["", "{}", '{"traceEvents": [{"name": "process_name"}]}'])
def test_a_file_that_is_not_our_trace_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(SettingsError, match=r"x\.json is not a trace that this program wrote"):
        read_chrome_trace(tmp_path / "x.json")


def test_the_picture_is_a_png_that_marks_planned_and_measured_timelines(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    planned = plan_timeline(program(100), {"forward_a": 5.0}, RATES, "plan")
    write_picture(tmp_path / "one.png", planned)
    write_picture(tmp_path / "two.png", planned, Timeline("step 7", True, planned.spans, planned.memory))
    one, two = ((tmp_path / name).read_bytes() for name in ("one.png", "two.png"))
    assert one.startswith(b"\x89PNG") and b"plan: planned (from rates; nothing was run)" in one
    assert b"step 7: measured" in two
    height = [int.from_bytes(content[20:24], "big") for content in (one, two)]
    assert height[1] == pytest.approx(2 * height[0], rel=0.02)


@pytest.mark.parametrize(
    "content", ["[" * 100_000, '{"traceEvents": {"a": 1}}', '{"traceEvents": [{"pid": 1, "name": 1}]}']
)
def test_a_hostile_trace_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_text(content)
    with pytest.raises(SettingsError, match="is not a trace that this program wrote"):
        read_chrome_trace(tmp_path / "trace.json")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SettingsError, match="not a regular file"):
        read_chrome_trace(tmp_path / "pipe")
