"""The report: one file, simulated and measured panels apart, with every part that the issue of the report names."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cerebras_tensorflow.perf.html.content import Content, RunRecord, SparseShare
from cerebras_tensorflow.perf.html.figure import Figure, bar
from cerebras_tensorflow.perf.html.page import write_report
from cerebras_tensorflow.perf.timeline import COMPUTE, LOAD, Span, Timeline
from cerebras_tensorflow.system.wafer.scaling import scaling
from cerebras_tensorflow.system.wafer.schedule import GRADIENTS_OUT, WAFER, WEIGHTS_IN, held_activations, schedule
from cerebras_tensorflow.system.wafer.simulate import Workload, simulate
from cerebras_tensorflow.system.wafer.summary import summary_text
from cerebras_tensorflow.system.wafer.transformers import Transformer

pytest.importorskip("plotly", reason="reports need plotly")

NETWORK = Transformer(64, 3, 4, 128, 1000, 32).network()
STEP = Timeline("step 7", True, (Span(LOAD, "w", 0.0, 0.1, 10), Span(COMPUTE, "op", 0.1, 0.4)), ((0.0, 5), (0.2, 9)))


def page(mode: str, path: Path) -> str:
    simulation = simulate(NETWORK, Workload(mode, 16))
    record = RunRecord((1, 2), (3.5, 3.25), (10.0, 11.0), (("samples", "32"),))
    content = Content("toy <model>", simulation, NETWORK, None, STEP, [("all", 5, "x")], record)
    write_report(path, replace(content, scaling=scaling(NETWORK, Workload(mode, 16))))
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("mode", ["pipelined", "weight_streaming"])
def test_a_report_keeps_simulated_and_measured_panels_apart(mode: str, tmp_path: Path) -> None:
    text = page(mode, tmp_path / "report.html")
    sections = dict(re.findall(r'<section class="(?:\w+)" id="(\w+)">(.*?)</section>', text, re.S))
    assert list(sections) == ["simulated", "planned", "measured"]
    for title in ("Floorplan", "One step over time", "Memory of the wafer", "ten slowest", "Bytes by weight", "change"):
        assert title in sections["simulated"], title
    assert ("More systems" in sections["simulated"]) == (mode == "weight_streaming")
    assert "block_1/attention" in sections["simulated"].replace("\\u002f", "/")
    assert "Loss" in sections["measured"] and "Speed" in sections["measured"] and "step 7" in sections["measured"]
    assert "measured" not in sections["simulated"].replace("not a measurement", "")
    assert "toy &lt;model&gt;" in text and 'id="summary"' in text


def test_sparse_weights_are_shown_with_target_and_zeros(tmp_path: Path) -> None:
    network = replace(NETWORK, sparsity={"block_0/<up>": 0.75})
    shares = [SparseShare("block_0/<up>", "rigl", 0.75, 0.7421875), SparseShare("mine", "sparsifier", None, 0.5)]
    record = RunRecord(sparsity=shares)
    simulation = simulate(network, Workload("pipelined", 16))
    write_report(tmp_path / "report.html", Content("toy", simulation, network, record=record))
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    summary = text[text.index('id="summary"') :]
    assert "block_0/&lt;up&gt;" in summary and "75.0%" in summary
    measured = text[text.index('id="measured"') : text.index('id="summary"')]
    assert "Sparsity by weight" in measured and "74.22% zeros" in measured
    assert "75.0%" in summary_text(network, "pipelined").partition("sparse weight")[2]
    assert "sparse" not in summary_text(NETWORK, "pipelined").replace("\n", "")


@pytest.mark.parametrize("mode", ["pipelined", "weight_streaming"])
def test_plotly_takes_every_chart(mode: str, tmp_path: Path) -> None:
    go = pytest.importorskip("plotly.graph_objects")
    text = page(mode, tmp_path / "report.html")
    drawn = re.findall(r"Plotly\.newPlot\((.*)\)</script>", text[text.index("<section") :])
    assert len(drawn) == {"pipelined": 9, "weight_streaming": 10}[mode]
    charts = [json.loads(f"[{words}]") for words in drawn]
    assert len({name for name, *_ in charts}) == len(drawn)
    for _, data, layout, config in charts:
        assert go.Figure({"data": data, "layout": layout}).data and config["responsive"]


def test_a_name_in_a_chart_does_not_end_its_script() -> None:
    drawn = Figure([bar(x=[np.float32(0.5)], y=["</script>"])])
    drawn.update_layout(height=10)
    assert drawn.to_html().count("</script>") == 1 and '"x": [0.5]' in drawn.to_html()


def test_a_report_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    text = page("pipelined", tmp_path / "report.html")
    assert re.findall(r'<(?:script|link|img|iframe)[^>]*(?:src|href)="', text) == []


def test_layers_run_forward_and_then_backward_while_weights_arrive_and_gradients_leave() -> None:
    step = simulate(NETWORK, Workload("weight_streaming", 16))
    work = schedule(step, is_training=True)
    on_wafer = [item for item in work if item.lane == WAFER]
    names = [placed.layer.name for placed in step.layers]
    assert [item.name for item in on_wafer] == names + names[::-1]
    assert all(after.begin_s == pytest.approx(before.end_s) for before, after in itertools.pairwise(on_wafer))
    assert on_wafer[-1].end_s == pytest.approx(step.step_s - step.overhead_s)
    assert {item.part for item in on_wafer[len(names) :]} == {"backward"}
    assert {item.lane for item in work} == {WAFER, WEIGHTS_IN, GRADIENTS_OUT}


def test_activations_grow_forward_and_are_given_back() -> None:
    step = simulate(NETWORK, Workload("weight_streaming", 16))
    held = [size for _, size in held_activations(step, is_training=True)]
    assert held[-1] == 0 and max(held) >= step.kept_bytes > held[0]


@pytest.mark.parametrize("mode", ["pipelined", "weight_streaming"])
def test_names_of_a_model_are_no_markup(mode: str, tmp_path: Path) -> None:
    evil = '<a href="https://evil.example">w</a></script><script>alert(1)</script>'
    network = replace(NETWORK, layers=tuple(replace(layer, name=evil + layer.name) for layer in NETWORK.layers))
    step = Timeline(evil, True, (Span(LOAD, evil, 0.0, 0.1, 10), Span(COMPUTE, evil, 0.1, 0.4)), ((0.0, 5),), evil)
    record = RunRecord((1,), (3.5,), (10.0,), ((evil, evil),))
    simulation = simulate(network, Workload(mode, 16))
    write_report(tmp_path / "page", Content(evil, simulation, network, step, step, [(evil, 5, evil)], record))
    body = (tmp_path / "page").read_text().partition("<body>")[2]
    assert "<script>alert" not in body and body.count("&lt;a href=") > 10
    assert "\\u003ca href" not in body  # plotly makes a link of it
