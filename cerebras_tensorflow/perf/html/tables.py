"""Tables of a report: the slowest layers, the model's layers, rows of figures."""

from __future__ import annotations

import html
from collections.abc import Sequence

from cerebras_tensorflow.perf.html.content import Content
from cerebras_tensorflow.system.wafer.layers import Network
from cerebras_tensorflow.system.wafer.simulation import Simulation
from cerebras_tensorflow.system.wafer.summary import SPARSITY_TITLES, TITLES, sparsity_rows, summary_rows
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
    return _table(TITLES, summary_rows(content.network, content.simulation.mode), numbers=(3, 4))


def sparsity_table(network: Network) -> str:
    """Return the sparse weights with their targets; nothing if all weights are dense."""
    if not network.sparsity:
        return ""
    table = _table(SPARSITY_TITLES, sparsity_rows(network), numbers=(1,))
    return f"<details><summary>Sparse weights</summary>{table}</details>"


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int]) -> str:
    def cells(tag: str, values: Sequence[str]) -> str:
        marks = ['class="number"' if place in numbers else "" for place in range(len(values))]
        return "".join(f"<{tag} {mark}>{html.escape(value)}</{tag}>" for mark, value in zip(marks, values, strict=True))

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return f"<table><thead><tr>{cells('th', titles)}</tr></thead><tbody>{body}</tbody></table>"
