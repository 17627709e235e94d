"""The time of one layer: the longest of compute, memory, fabric and I/O, and what comes on top."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cerebras_tensorflow.system import facts
from cerebras_tensorflow.system.wafer.layers import Layer

ELEMENT_BYTES = 2
"""Activations are in half precision on the wafer."""

_SIMD = int(facts.HALF_PRECISION_MACS_PER_CYCLE.value)
_CORE_FLOPS = facts.HALF_PRECISION_FLOPS.value / facts.CORES.value
_CORE_MEMORY_BYTES_PER_S = facts.MEMORY_BYTES_PER_S.value / facts.CORES.value
_ELEMENTS_PER_LINK_S = (
    facts.CLOCK_HZ.value * facts.WAVELETS_PER_CYCLE.value * 4 / ELEMENT_BYTES
)  # two halves in a wavelet


@dataclass(frozen=True)
class LayerTime:
    """Where the time of a layer in one step goes [s]. The first four overlap.

    Attributes:
        compute_s, memory_s, fabric_s, io_s: Time of each resource.
        fill_s: To fill and drain the layer; on top.
    """

    compute_s: float
    memory_s: float
    fabric_s: float
    io_s: float
    fill_s: float = 0.0

    @property
    def seconds(self) -> float:
        """Time of the layer in a step [s]."""
        return max(self.compute_s, self.memory_s, self.fabric_s, self.io_s) + self.fill_s

    @property
    def limit(self) -> str:
        """What takes the longest: "compute", "memory", "fabric", "I/O" or "fill and drain"."""
        return max(self.waits, key=self.waits.__getitem__)

    @property
    def waits(self) -> dict[str, float]:
        """The times that add up to that of the layer [s]: of the slowest resource, and to fill and drain."""
        overlapping = {"compute": self.compute_s, "memory": self.memory_s, "fabric": self.fabric_s, "I/O": self.io_s}
        slowest = max(overlapping, key=overlapping.__getitem__)
        return {slowest: overlapping[slowest], "fill and drain": self.fill_s}


def core_seconds(layer: Layer, efficiency: float) -> float:
    """Return the time of one sample on a single core [s]; n cores take an n-th of it."""
    return layer.flops / (_CORE_FLOPS * efficiency)


def memory_core_seconds(layer: Layer) -> float:
    """Return the time that one sample's reads and writes take on a single core [s]."""
    return layer.moved_elements * ELEMENT_BYTES / _CORE_MEMORY_BYTES_PER_S


def edge_seconds(elements: float, links: float) -> float:
    """Return the time in which elements cross the edge of a rectangle over a number of links [s]."""
    return elements / (links * _ELEMENTS_PER_LINK_S)


def vector_share(rows: float, grid_rows: float, start_cycles: float) -> float:
    """Return the share of cycles in which the vector operation of a weight does useful work.

    Each weight meets the rows that a core holds: rows / grid_rows of them, four in a cycle, after the start of the
    operation. Few rows (short sequences, small batches) leave most of the cycles to the start.

    >>> vector_share(850 * 40, 850, 10)
    0.5
    """
    held = rows / grid_rows
    return held / _SIMD / (math.ceil(held / _SIMD) + start_cycles)


def column_share(features: float, columns: float) -> float:
    """Return the share of the columns' cycles that features keep busy.

    A column holds whole features of the activations, so the column with most of them sets the pace.

    >>> column_share(1024, 1000), column_share(4000, 1000)
    (0.512, 1.0)
    """
    held = features / columns
    return held / math.ceil(held)


def product_column_share(layer: Layer, columns: float, forward_passes: int, is_training: bool) -> float:
    """Return the share of the columns' cycles that do useful work in all passes over a matrix product.

    Going forward a core multiplies the input features that it holds, going back the gradients of the output features.
    The gradient of the weights uses either of the two, whichever fills the columns better. 1 for other layers.
    """
    if not layer.input_features or not layer.output_features:
        return 1.0
    inputs, outputs = (column_share(features, columns) for features in (layer.input_features, layer.output_features))
    if not is_training:
        return inputs
    return (forward_passes + 2) / (forward_passes / inputs + 1 / outputs + 1 / max(inputs, outputs))


def crossing_s() -> float:
    """Return the time of a value from one corner of the wafer to the other [s]."""
    hops = facts.GRID_ROWS.value + facts.GRID_COLUMNS.value
    return hops * facts.HOP_CYCLES.value / facts.CLOCK_HZ.value
