"""Writes a report: one HTML file with everything in it, for light and dark screens and for paper."""

from __future__ import annotations

import html
import importlib.util
import pkgutil
from pathlib import Path

from cerebras_tensorflow import files
from cerebras_tensorflow.errors import SettingsError
from cerebras_tensorflow.perf.html.content import Content
from cerebras_tensorflow.perf.html.figure import Figure
from cerebras_tensorflow.perf.html.tables import model_summary, rows_table, slowest_table, sparsity_table
from cerebras_tensorflow.perf.html.words import EXPLANATIONS
from cerebras_tensorflow.perf.timeline import Timeline
from cerebras_tensorflow.system.wafer.advice import advice, input_need
from cerebras_tensorflow.system.wafer.simulation import Simulation
from cerebras_tensorflow.units import format_bytes, format_seconds

NAME = "report.html"

_STYLE = """
:root { color-scheme: light dark; --text: #222; --page: #fff; --box: #f4f5f7; --line: #c9ccd1; --simulated: #0b5cad;
  --measured: #8a4b00; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e6e6; --page: #15171a; --box: #1f2328; --line: #444a52;
  --simulated: #6fb3f2; --measured: #f2b366; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); max-width: 1100px;
  margin: 0 auto; padding: 1rem 1.5rem; }
section { border: 1px solid var(--line); border-left-width: 6px; border-radius: 6px; padding: 0 1.2rem 1rem;
  margin: 1.4rem 0; }
section.simulated { border-left-color: var(--simulated); } section.measured { border-left-color: var(--measured); }
.label { display: inline-block; border: 1px solid currentColor; border-radius: 4px; padding: 0 .5em; font-size: .85rem;
  font-weight: 600; }
.simulated .label { color: var(--simulated); } .measured .label { color: var(--measured); }
.cards { display: flex; flex-wrap: wrap; gap: .8rem; } .card { background: var(--box); border-radius: 6px;
  padding: .5rem 1rem; } .card b { display: block; font-size: 1.25rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; } th, td { text-align: left; padding: .2rem .6rem;
  border-bottom: 1px solid var(--line); overflow-wrap: anywhere; } td.number, th.number { text-align: right;
  white-space: nowrap; }
h2 { margin: .9rem 0 .3rem; } h3 { margin: 1.3rem 0 .2rem; } p.how { margin: .2rem 0 .4rem; opacity: .85; }
@media print { :root { --text: #000; --page: #fff; --box: #f4f5f7; --line: #bbb; --simulated: #0b5cad;
  --measured: #8a4b00; } body { max-width: none; padding: 0; } .chart, .card, tr { break-inside: avoid; }
  h2, h3 { break-after: avoid; } }
"""

# The colour of a chart's text follows that of the page, also on paper.
_SCRIPT = """
function recolour(color) {
  document.querySelectorAll('.plotly-graph-div').forEach(function (chart) {
    Plotly.relayout(chart, {'font.color': color});
  });
}
function follow() { recolour(getComputedStyle(document.body).color); }
window.addEventListener('load', follow);
window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', follow);
window.addEventListener('beforeprint', function () { recolour('#000000'); });
window.addEventListener('afterprint', follow);
"""


def is_available() -> bool:
    """Return whether reports can be written: whether plotly is installed."""
    return importlib.util.find_spec("plotly") is not None


def write_report(path: Path, content: Content) -> None:
    """Write a report.

    Raises:
        SettingsError: If plotly is not installed.
        OSError: If writing fails. An existing file then stays as it was.
    """
    if not is_available():
        raise SettingsError("a report needs plotly: pip install 'cerebras_tensorflow[report]'")
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(path, _page(content), is_durable=False)


def _page(content: Content) -> str:
    title = html.escape(content.title)
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title}</title><style>{_STYLE}</style>",
            f"<script>{_plotly_js()}</script></head><body>",
            f"<h1>{title}</h1>",
            "<p>Blue sections are <b>simulated</b>: a model of a CS-2, not a measurement. Orange sections are about "
            "<b>this machine</b>, which computes the numbers. Hover over a chart for details.</p>",
            _simulated(content),
            *_machine(content),
            _summary(content),
            f"<script>{_SCRIPT}</script></body></html>",
        ]
    )


def _plotly_js() -> str:
    script = pkgutil.get_data("plotly", "package_data/plotly.min.js")
    assert script is not None, "the package plotly is a folder of files"
    return script.decode()


def _simulated(content: Content) -> str:
    from cerebras_tensorflow.perf.html import simulated_charts as charts

    simulation, is_training = content.simulation, content.network.is_training
    mode = "pipelined" if simulation.mode == "pipelined" else "streaming"
    parts = [
        '<section class="simulated" id="simulated">',
        '<h2>The CS-2 <span class="label">simulated</span></h2>',
        _cards(simulation),
        *(f"<p><b>Does not fit:</b> {html.escape(simulation.problem)}</p>" if simulation.problem else "",),
        "<h3>What limits it, and what to change</h3>",
        f"<p>{html.escape(_limits(simulation))}</p>",
        f'<p class="how">{EXPLANATIONS["limits"]}</p>',
        "<ul>"
        + "".join(f"<li>{html.escape(text.removeprefix('Change: '))}</li>" for text in advice(simulation))
        + "</ul>",
        f"<p>{html.escape(input_need(simulation))}</p>",
        _chart("Floorplan of the wafer", EXPLANATIONS[f"floorplan_{mode}"], charts.floorplan(simulation)),
        _chart("One step over time", EXPLANATIONS[f"step_{mode}"], charts.step_timeline(simulation, is_training)),
        _chart("Memory of the wafer", EXPLANATIONS[f"memory_{mode}"], charts.memory_curve(simulation, is_training)),
        "<h3>The ten slowest layers</h3>",
        f'<p class="how">{EXPLANATIONS["slowest"]}</p>',
        slowest_table(simulation),
        _chart("Where their time goes", EXPLANATIONS["slowest_parts"], charts.slowest_layers(simulation)),
        _chart("Bytes by weight", EXPLANATIONS["weights"], charts.weight_bytes(content.network)),
        _chart("More systems", EXPLANATIONS["scaling"], charts.scaling_curve(content.scaling))
        if content.scaling
        else "",
        "<h3>Figures of the model</h3>",
        "<ul>" + "".join(f"<li>{html.escape(text)}</li>" for text in simulation.assumptions) + "</ul>",
        "</section>",
    ]
    return "\n".join(parts)


def _cards(simulation: Simulation) -> str:
    slow, fast = simulation.samples_range
    cards = [
        (_rate(simulation.samples_per_s), f"samples/s ({_rate(slow)} to {_rate(fast)})"),
        (format_seconds(simulation.step_s), f"a step of {simulation.batch_size} samples"),
        (
            str(simulation.num_csx),
            f"system{'s' if simulation.num_csx > 1 else ''}, " + simulation.mode.replace("_", " "),
        ),
        (str(simulation.micro_batches), f"micro-batch{'es' if simulation.micro_batches > 1 else ''} on each system"),
        (format_bytes(simulation.transmitted_bytes), "over the links of a system in a step"),
    ]
    return '<div class="cards">' + "".join(f'<div class="card"><b>{a}</b>{b}</div>' for a, b in cards) + "</div>"


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 1000 else f"{per_s:.3g}"


def _limits(simulation: Simulation) -> str:
    step_s = simulation.step_s or 1.0
    shares = [f"{name} {seconds / step_s:.0%}" for name, seconds in list(simulation.limits().items())[:4]]
    shares = [text for text in shares if not text.endswith(" 0%")]
    return f"Of a step's time, this is what it waits for: {', '.join(shares)}."


def _machine(content: Content) -> list[str]:
    """Return the sections about this machine: the plan, and what was measured."""
    sections = []
    if content.planned is not None or content.memory:
        parts = ['<section class="measured" id="planned">', '<h2>This machine <span class="label">planned</span></h2>']
        if content.memory:
            parts += ["<h3>Memory plan</h3>", rows_table([(a, format_bytes(b), c) for a, b, c in content.memory])]
        parts += _timeline(content.planned)
        sections.append("\n".join([*parts, "</section>"]))
    record = content.record
    if record is None and content.measured is None:
        return sections
    parts = ['<section class="measured" id="measured">', '<h2>This machine <span class="label">measured</span></h2>']
    if record is not None:
        from cerebras_tensorflow.perf.html import machine_charts as charts

        parts.append(rows_table([(name, value, "") for name, value in record.figures]))
        if record.steps:
            parts.append(_chart("Loss", EXPLANATIONS["loss"], charts.losses(record)))
            parts.append(_chart("Speed", EXPLANATIONS["speed"], charts.speed(record)))
        if record.sparsity:
            parts.append(_chart("Sparsity by weight", EXPLANATIONS["sparsity"], charts.sparsity(record)))
    parts += _timeline(content.measured)
    return [*sections, "\n".join([*parts, "</section>"])]


def _timeline(timeline: Timeline | None) -> list[str]:
    if timeline is None or not timeline.spans:
        return []
    from cerebras_tensorflow.perf.html import machine_charts as charts

    parts = [_chart(f"Timeline: {timeline.title}", EXPLANATIONS["machine_step"], charts.step_timeline(timeline))]
    if timeline.memory:
        counted = html.escape(timeline.memory_label.removesuffix(" [bytes]"))
        how = f"{EXPLANATIONS['machine_memory']} Counted: {counted}."
        parts.append(_chart("Memory over that step", how, charts.memory_curve(timeline)))
    return parts


def _summary(content: Content) -> str:
    network = content.network
    words = f"{len(network.layers)} layers, {network.num_weights:,} parameters, {network.flops:.3g} operations a sample"
    return (
        f'<section id="summary"><h2>Model summary</h2><p>{words}.</p>'
        f"<details><summary>All layers</summary>{model_summary(content)}</details>{sparsity_table(network)}</section>"
    )


def _chart(title: str, how: str, figure: Figure) -> str:
    return f'<div class="chart"><h3>{html.escape(title)}</h3><p class="how">{how}</p>{figure.to_html()}</div>'
