"""Charts of the simulated step: floorplan, timeline, memory, weights, the slowest layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cerebras_tensorflow.perf.html.figure import Figure, bar, scatter
from cerebras_tensorflow.perf.html.style import COLORS, chart, of_kind, shown
from cerebras_tensorflow.system.wafer.layers import KINDS, Network
from cerebras_tensorflow.system.wafer.placement import COLUMNS, CORE_DATA_BYTES, ROWS
from cerebras_tensorflow.system.wafer.schedule import WAFER, held_activations, schedule
from cerebras_tensorflow.system.wafer.simulation import PlacedLayer, Simulation
from cerebras_tensorflow.units import format_bytes, format_seconds

_MOST_WEIGHTS = 20


def floorplan(simulation: Simulation) -> Figure:
    """Return the wafer from above. Pipelined: each layer's rectangle; streaming: what fills the cores' memory."""
    if simulation.mode == "pipelined":
        bars = [_rectangles(kind, simulation) for kind in KINDS]
        figure = chart([one for one in bars if one is not None])
    else:
        figure = chart(_memory_areas(simulation))
    figure.add_shape(type="rect", x0=0, y0=0, x1=COLUMNS, y1=ROWS, line={"width": 2, "color": "#888888"})
    figure.update_layout(barmode="overlay", height=520, bargap=0, legend={"orientation": "h", "y": 1.08})
    figure.update_xaxes(title=f"columns of cores (of {COLUMNS})", range=[-5, COLUMNS + 5], showgrid=False)
    figure.update_yaxes(title=f"rows of cores (of {ROWS})", range=[-5, ROWS + 5], showgrid=False)
    return figure


def _rectangles(kind: str, simulation: Simulation) -> Any:
    placed = [layer for layer in simulation.layers if layer.layer.kind == kind and layer.rectangle is not None]
    boxes = [layer.rectangle for layer in placed if layer.rectangle is not None]
    if not boxes:
        return None
    return bar(
        name=kind,
        x=[box.x + box.width / 2 for box in boxes],
        base=[box.y for box in boxes],
        y=[box.height for box in boxes],
        width=[box.width for box in boxes],
        marker={"color": of_kind(kind), "line": {"width": 0.5, "color": "white"}},
        hovertext=[_hover(layer, f"{box.cores:,} cores") for layer, box in zip(placed, boxes, strict=True)],
        hoverinfo="text",
    )


def _hover(placed: PlacedLayer, cores: str) -> str:
    return (
        f"<b>{shown(placed.layer.name)}</b><br>{placed.layer.kind}<br>{cores}<br>{format_bytes(placed.num_bytes)} in "
        f"their memory<br>{format_seconds(placed.time.seconds)} of a step, limited by {placed.time.limit}"
    )


def _memory_areas(simulation: Simulation) -> list[Any]:
    """Return the wafer's memory at its fullest as areas of cores."""
    capacity = ROWS * COLUMNS * CORE_DATA_BYTES
    samples = simulation.batch_size / simulation.num_csx / simulation.micro_batches
    widest = max(simulation.layers, key=lambda placed: placed.num_bytes)
    areas = [
        ("activations kept for the backward pass", simulation.kept_bytes, f"of {samples:g} samples"),
        ("activations of the layer at work", widest.num_bytes, f"the widest: {shown(widest.layer.name)}"),
    ]
    areas.append(
        ("free", max(0.0, capacity - sum(size for _, size, _ in areas)), "weights pass through, layer by layer")
    )
    bars, x = [], 0.0
    for number, (name, size, text) in enumerate(areas):
        width = COLUMNS * size / capacity
        bars.append(
            bar(
                name=f"{name}: {min(size / capacity, 1):.1%}",
                x=[x + width / 2],
                y=[ROWS],
                width=[width],
                marker={"color": COLORS[number] if name != "free" else "#bbbbbb"},
                hovertext=f"<b>{name}</b><br>{format_bytes(size)} of {format_bytes(capacity)}<br>{text}",
                hoverinfo="text",
            )
        )
        x += width
    return bars


def step_timeline(simulation: Simulation, is_training: bool) -> Figure:
    """Return when each layer works in a step."""
    kinds = {placed.layer.name: placed.layer.kind for placed in simulation.layers}
    work = schedule(simulation, is_training)
    groups: dict[str, list[Any]] = {}
    for item in work:
        kind = kinds.get(item.name, "") if item.lane == WAFER else item.part
        groups.setdefault(kind, []).append(item)
    bars = [
        bar(
            name=group,
            orientation="h",
            y=[shown(item.lane) for item in items],
            base=[item.begin_s * 1000 for item in items],
            x=[(item.end_s - item.begin_s) * 1000 for item in items],
            marker={"color": of_kind(group), "line": {"width": 0}},
            hovertext=[
                f"{shown(item.name)}<br>{item.part}<br>{format_seconds(item.end_s - item.begin_s)}" for item in items
            ],
            hoverinfo="text",
        )
        for group, items in groups.items()
    ]
    lanes = list(dict.fromkeys(shown(item.lane) for item in work))
    figure = chart(bars)
    figure.update_layout(
        barmode="overlay", height=max(260, 120 + 22 * len(lanes)), legend={"orientation": "h", "y": 1.15}
    )
    figure.update_xaxes(title="milliseconds, simulated")
    figure.update_yaxes(autorange="reversed", automargin=True, ticksuffix=" ")
    return figure


def memory_curve(simulation: Simulation, is_training: bool) -> Figure:
    """Return the memory of the wafer over a step."""
    curve = held_activations(simulation, is_training)
    capacity = ROWS * COLUMNS * CORE_DATA_BYTES / 1e9
    line = scatter(
        x=[at * 1000 for at, _ in curve],
        y=[held / 1e9 for _, held in curve],
        line={"shape": "hv", "color": COLORS[0]},
        fill="tozeroy",
        name="held on the wafer",
    )
    figure = chart([line])
    line_of_cores = {"dash": "dash", "color": "#888888"}
    figure.add_horizontal_line(capacity, f"{capacity:.1f} GB: all cores together", line_of_cores)
    figure.update_layout(height=320, showlegend=False)
    figure.update_xaxes(title="milliseconds, simulated")
    figure.update_yaxes(title="GB on the wafer", rangemode="tozero")
    return figure


def weight_bytes(network: Network) -> Figure:
    """Return the bytes of the largest weights."""
    owners = sorted((layer for layer in network.layers if layer.num_own_weights), key=lambda layer: -layer.weight_bytes)
    largest = owners[:_MOST_WEIGHTS]
    names, sizes = [shown(layer.name) for layer in largest], [layer.weight_bytes for layer in largest]
    total = format_bytes(sum(layer.weight_bytes for layer in owners))
    weights = bar(
        orientation="h",
        y=names,
        x=[size / 1e6 for size in sizes],
        marker={"color": [of_kind(layer.kind) for layer in largest]},
        hovertext=[f"{name}<br>{format_bytes(size)}" for name, size in zip(names, sizes, strict=True)],
        hoverinfo="text",
    )
    figure = chart([weights])
    figure.update_layout(height=max(240, 90 + 22 * len(names)))
    figure.update_xaxes(title=f"MB of weights: the largest {len(largest)} of {len(owners)}, which are {total} together")
    figure.update_yaxes(autorange="reversed", automargin=True, ticksuffix=" ")
    return figure


def slowest_layers(simulation: Simulation) -> Figure:
    """Return where the time of the ten slowest layers goes."""
    slowest = simulation.slowest()
    parts = ("compute", "memory", "fabric", "io", "fill")
    bars = [
        bar(
            name={"io": "I/O", "fill": "fill and drain"}.get(part, part),
            orientation="h",
            y=[shown(placed.layer.name) for placed in slowest],
            x=[getattr(placed.time, f"{part}_s") * 1000 for placed in slowest],
            marker={"color": COLORS[number]},
        )
        for number, part in enumerate(parts)
    ]
    figure = chart(bars)
    figure.update_layout(barmode="group", height=520, legend={"orientation": "h", "y": 1.08})
    figure.update_xaxes(title="milliseconds of a step, simulated")
    figure.update_yaxes(autorange="reversed", automargin=True, ticksuffix=" ")
    return figure


def scaling_curve(steps: Mapping[int, Simulation]) -> Figure:
    """Return the speed for several numbers of systems."""
    counts = sorted(steps)
    ranges = [steps[count].samples_range for count in counts]
    ideal = steps[counts[0]].samples_per_s / counts[0]
    band = {"mode": "lines", "line": {"width": 0}, "showlegend": False, "hoverinfo": "skip"}
    lines = [
        scatter(x=counts, y=[slow for slow, _ in ranges], **band),
        scatter(x=counts, y=[fast for _, fast in ranges], fill="tonexty", fillcolor="rgba(0,114,178,0.2)", **band),
        scatter(
            x=counts,
            y=[ideal * count for count in counts],
            name="ideal",
            mode="lines",
            line={"dash": "dash", "color": "#999999"},
        ),
        scatter(
            x=counts,
            y=[steps[count].samples_per_s for count in counts],
            name="simulated",
            mode="lines+markers",
            line={"color": COLORS[0]},
        ),
    ]
    figure = chart(lines)
    figure.update_layout(height=340, legend={"orientation": "h", "y": 1.1})
    figure.update_xaxes(title="systems", tickvals=counts)
    figure.update_yaxes(title="samples/s, simulated", rangemode="tozero")
    return figure
