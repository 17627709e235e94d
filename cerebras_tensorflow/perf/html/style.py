"""Colours and the common look of all charts."""

from __future__ import annotations

import html

from cerebras_tensorflow.perf.html.figure import Figure, Trace

COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442")
"""People who do not see all colours tell these apart (Okabe and Ito, 2008)."""

_OF_KIND = {
    "matrix product": COLORS[0],
    "attention": COLORS[1],
    "norm": COLORS[2],
    "embedding": COLORS[3],
    "loss": COLORS[4],
    "other": "#999999",
    "transfer": COLORS[5],
    "sample 1": COLORS[0],
    "sample 2": COLORS[1],
    "sample 3": COLORS[2],
    "sample 4": COLORS[3],
    "load": COLORS[5],
    "compute": COLORS[0],
    "update": COLORS[1],
    "store": COLORS[3],
}


def of_kind(name: str) -> str:
    """Return the colour of a kind of layer, of a stream or of a sample."""
    return _OF_KIND.get(name, "#999999")


def chart(traces: list[Trace]) -> Figure:
    """Return a figure in the common look. Its background is that of the page, light or dark."""
    figure = Figure(traces)
    figure.update_layout(
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        margin={"l": 60, "r": 20, "t": 30, "b": 50},
        font={"size": 13, "color": "#444444"},
        hoverlabel={"align": "left"},
    )
    figure.update_xaxes(gridcolor="rgba(128,128,128,0.25)", zeroline=False)
    figure.update_yaxes(gridcolor="rgba(128,128,128,0.25)", zeroline=False)
    return figure


def shown(name: str) -> str:
    """Return a name of the model for a chart's texts, in which plotly reads tags."""
    return html.escape(name, quote=False)
