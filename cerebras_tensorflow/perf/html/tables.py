"""Tables of a report: the slowest layers, the model's layers, rows of figures."""

from __future__ import annotations

import html
from collections.abc import Sequence

from cerebras_tensorflow.perf.html.content import Content
from cerebras_tensorflow.system.wafer.layers import Layer
from cerebras_tensorflow.system.wafer.simulation import Simulation
from cerebras_tensorflow.units import format_bytes, format_seconds


def rows_table(rows: Sequence[tuple[str, str, str]]) -> str:
    """Return rows of name, value and meaning."""
    return (
        "<table>"
        + "".join(
            f'<tr><td>{html.escape(name)}</td><td class="number">{html.escape(value)}</td>'
            f"<td>{html.escape(text)}</td></tr>"
            for name, value, text in rows
        )
        + "</table>"
    )


def slowest_table(simulation: Simulation) -> str:
    """Return the ten slowest layers."""
    titles = ("layer", "kind", "cores", "memory", "time", "limit")
    rows = [
        (
            placed.layer.name,
            placed.layer.kind,
            f"{placed.rectangle.cores:,}" if placed.rectangle else "-",
            format_bytes(placed.num_bytes),
            format_seconds(placed.time.seconds),
            placed.time.limit,
        )
        for placed in simulation.slowest()
    ]
    return _table(titles, rows, numbers=(2, 3, 4))


def model_summary(content: Content) -> str:
    """Return all layers with shapes, parameters, operations, and where their weights live."""
    titles = ("layer", "kind", "output", "parameters", "operations a sample", "its weights live")
    rows = [
        (
            layer.name,
            layer.kind,
            layer.shape or "-",
            f"{layer.num_own_weights:,}",
            f"{layer.flops:.3g}",
            weights_live(layer, content.simulation.mode),
        )
        for layer in content.network.layers
    ]
    return _table(titles, rows, numbers=(3, 4))


def weights_live(layer: Layer, mode: str) -> str:
    """Return where a layer's weights are between two steps."""
    if not layer.num_weights:
        return "-"
    if not layer.num_own_weights:
        return "with an earlier layer that shares them"
    return "on the wafer" if mode == "pipelined" else "in the weight store, streamed"


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int]) -> str:
    def cells(tag: str, values: Sequence[str]) -> str:
        marks = ['class="number"' if place in numbers else "" for place in range(len(values))]
        return "".join(f"<{tag} {mark}>{html.escape(value)}</{tag}>" for mark, value in zip(marks, values, strict=True))

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table><thead><tr>{cells('th', titles)}</tr></thead><tbody>{body}</tbody></table>"
