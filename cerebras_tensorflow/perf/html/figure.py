"""A chart as plotly.js takes it. plotly's own Python classes check each value again, which is slow."""

from __future__ import annotations

import itertools
import json
from typing import Any

Trace = dict[str, Any]
"""The points, bars or lines of one colour."""

_CONFIG = {"displayModeBar": False, "responsive": True}
_IN_SCRIPT = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})  # a text cannot end the script
_NUMBERS = itertools.count()  # of the charts of a page


def bar(**values: Any) -> Trace:
    """Return bars."""
    return {"type": "bar", **values}


def scatter(**values: Any) -> Trace:
    """Return points or lines."""
    return {"type": "scatter", **values}


class Figure:
    """A chart.

    Args:
        traces: What it shows.
    """

    def __init__(self, traces: list[Trace]) -> None:
        self.data = traces
        self.layout: dict[str, Any] = {"xaxis": {}, "yaxis": {}}

    def update_layout(self, **values: Any) -> None:
        """Set attributes of plotly.js's layout."""
        self.layout.update(values)

    def update_xaxes(self, **values: Any) -> None:
        """Set attributes of the horizontal axis. A title is a text."""
        self._update("xaxis", values)

    def update_yaxes(self, **values: Any) -> None:
        """Set attributes of the vertical axis. A title is a text."""
        self._update("yaxis", values)

    def add_shape(self, **values: Any) -> None:
        """Add a shape."""
        self.layout.setdefault("shapes", []).append(values)

    def add_horizontal_line(self, y: float, text: str, line: dict[str, Any]) -> None:
        """Add a line over the whole width, with a text above its right end."""
        self.add_shape(type="line", xref="x domain", x0=0, x1=1, y0=y, y1=y, line=line)
        place = {"x": 1, "xref": "x domain", "xanchor": "right", "y": y, "yanchor": "bottom"}
        self.layout.setdefault("annotations", []).append({"text": text, "showarrow": False, **place})

    def to_html(self) -> str:
        """Return the chart for a page that has loaded plotly.js."""
        name = f"chart-{next(_NUMBERS)}"
        parts = [json.dumps(part, default=float) for part in (name, self.data, self.layout, _CONFIG)]  # also NumPy's
        words = ", ".join(parts).translate(_IN_SCRIPT)
        style = f"height: {self.layout['height']}px; width: 100%"
        return (
            f'<div id="{name}" class="plotly-graph-div" style="{style}"></div><script>Plotly.newPlot({words})</script>'
        )

    def _update(self, axis: str, values: dict[str, Any]) -> None:
        if "title" in values:
            values["title"] = {"text": values["title"]}
        self.layout[axis].update(values)
