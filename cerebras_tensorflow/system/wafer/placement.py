"""Pipelined mode: every layer at once on the wafer, each on a rectangle of cores of its own."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from cerebras_tensorflow.errors import PlacementError
from cerebras_tensorflow.system import facts
from cerebras_tensorflow.units import format_bytes

CORE_DATA_BYTES = facts.CORE_SRAM_BYTES.value * facts.DATA_SHARE.value
"""Bytes of weights and activations that a core holds."""

ROWS, COLUMNS = int(facts.GRID_ROWS.value), int(facts.GRID_COLUMNS.value)
_SLACK = 0.97  # of the cores are shared out; whole rows and columns need the rest
_MOST_STRIPS = 24


@dataclass(frozen=True)
class Demand:
    """What one layer asks of the wafer.

    Attributes:
        name: The layer.
        core_s: Time of one sample on a single core [s].
        num_bytes: Weights, optimizer state and activations that its cores hold.
    """

    name: str
    core_s: float
    num_bytes: float

    @property
    def least_cores(self) -> int:
        """Cores whose memory holds it."""
        return max(1, math.ceil(self.num_bytes / CORE_DATA_BYTES))


@dataclass(frozen=True)
class Rectangle:
    """A rectangle of cores; x and y count columns and rows from a corner of the wafer."""

    x: int
    y: int
    width: int
    height: int

    @property
    def cores(self) -> int:
        """Number of cores."""
        return self.width * self.height


def place(demands: Sequence[Demand]) -> list[Rectangle]:
    """Return a rectangle for each layer, so that all take about the same time for a sample.

    Layers lie in strips, in the order of the forward pass: down one strip, up the next one.

    Raises:
        PlacementError: If the layers do not fit. It names the layer that needs most.
    """
    if not demands:
        return []  # a model without layers, such as one that only counts
    capacity = ROWS * COLUMNS * _SLACK
    needed = sum(demand.least_cores for demand in demands)
    if needed > capacity:
        raise PlacementError(_refusal(demands, needed))
    strips = _split(list(zip(demands, _balance(demands, capacity), strict=True)))
    rectangles: list[Rectangle] = []
    x = 0
    for number, strip in enumerate(strips):
        width = _width(strip)
        if x + width > COLUMNS:
            raise PlacementError(_refusal(demands, needed))
        y = 0
        for height in _heights([demand for demand, _ in strip], width):
            rectangles.append(Rectangle(x, y if number % 2 == 0 else ROWS - y - height, width, height))
            y += height
        x += width
    return rectangles


def _refusal(demands: Sequence[Demand], needed: int) -> str:
    largest = max(demands, key=lambda demand: demand.num_bytes)
    have = format_bytes(ROWS * COLUMNS * CORE_DATA_BYTES)
    return (
        f"this model does not fit on the wafer in pipelined mode: its {len(demands)} layers need "
        f"{format_bytes(sum(demand.num_bytes for demand in demands))} for weights, optimizer state and activations "
        f"({needed:,} cores), and the wafer has {have} ({ROWS * COLUMNS:,} cores). Layer {largest.name} needs most: "
        f"{format_bytes(largest.num_bytes)} ({largest.least_cores:,} cores). Use weight streaming, which holds one "
        "layer's weights at a time (csrun_wse python-ws, or --execution_strategy weight_streaming), a smaller model or "
        "shorter sequences; --allow_oversize goes on without a placement."
    )


def _balance(demands: Sequence[Demand], capacity: float) -> list[float]:
    """Share the cores out: each layer gets what its memory needs, and the slowest layer is as fast as possible."""
    low, high = 0.0, sum(demand.core_s for demand in demands) or 1e-12

    def shares(interval_s: float) -> list[float]:
        return [max(demand.least_cores, demand.core_s / interval_s) for demand in demands]

    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if sum(shares(middle)) <= capacity else (middle, high)
    return shares(high)


def _split(shares: list[tuple[Demand, float]]) -> list[list[tuple[Demand, float]]]:
    """Cut the layers into strips: consecutive layers, about the same number of cores each."""
    left = sum(cores for _, cores in shares)
    average = left / min(len(shares), _MOST_STRIPS, round(math.sqrt(len(shares))))
    strips: list[list[tuple[Demand, float]]] = [[]]
    filled = 0.0
    for demand, cores in shares:
        # A narrow strip would have a short edge to the next one, so what is left must fill at least half a strip.
        if strips[-1] and filled + cores / 2 > average and left > average / 2:
            strips.append([])
            filled = 0.0
        strips[-1].append((demand, cores))
        filled += cores
        left -= cores
    return strips


def _width(strip: list[tuple[Demand, float]]) -> int:
    """Return the least number of columns that gives the layers of a strip their cores."""
    width = math.ceil(sum(cores for _, cores in strip) / ROWS)
    while sum(-(-demand.least_cores // width) for demand, _ in strip) > ROWS:
        width += 1
    return width


def _heights(strip: Sequence[Demand], width: int) -> list[int]:
    """Share the rows of a strip out: first for memory, and then always to the slowest layer."""
    heights = [-(-demand.least_cores // width) for demand in strip]
    slowest = [
        (-demand.core_s / height, number) for number, (demand, height) in enumerate(zip(strip, heights, strict=True))
    ]
    heapq.heapify(slowest)
    for _ in range(ROWS - sum(heights)):
        _, number = slowest[0]
        heights[number] += 1
        heapq.heapreplace(slowest, (-strip[number].core_s / heights[number], number))
    return heights
