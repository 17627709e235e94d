"""Pipelined mode: all layers on the wafer at once; samples follow each other through them."""

from __future__ import annotations

from collections.abc import Sequence

from cerebras_tensorflow.errors import PlacementError
from cerebras_tensorflow.system import facts
from cerebras_tensorflow.system.wafer.figures import Figures
from cerebras_tensorflow.system.wafer.layers import ATTENTION, Layer, Network
from cerebras_tensorflow.system.wafer.placement import COLUMNS, ROWS, Demand, Rectangle, place
from cerebras_tensorflow.system.wafer.simulation import PlacedLayer, Simulation
from cerebras_tensorflow.system.wafer.times import (
    ELEMENT_BYTES,
    LayerTime,
    core_seconds,
    crossing_s,
    edge_seconds,
    memory_core_seconds,
)

_MASTER_BYTES = 4  # the optimizer's copy of a weight, and each of its slots


def simulate_pipelined(network: Network, batch_size: int, figures: Figures, allow_oversize: bool) -> Simulation:
    """Return the simulated step of a network in pipelined mode, on one system.

    Args:
        network: The layers.
        batch_size: Samples in a step.
        figures: Fitted and assumed figures.
        allow_oversize: Whether to go on without a placement if the layers do not fit.

    Raises:
        PlacementError: If the layers do not fit on the wafer.
    """
    in_flight = samples_in_flight(network)
    demands = _demands(network, figures.kernel_efficiency)
    problem = ""
    rectangles: Sequence[Rectangle | None]
    try:
        rectangles = place(demands)
    except PlacementError as error:
        if not allow_oversize:
            raise
        problem, rectangles = str(error), [None] * len(demands)
    total_core_s = sum(demand.core_s for demand in demands) or 1.0
    placed = []
    for layer, demand, rectangle in zip(network.layers, demands, rectangles, strict=True):
        cores = rectangle.cores if rectangle else ROWS * COLUMNS * demand.core_s / total_core_s or 1.0
        links = rectangle.width if rectangle else cores**0.5
        time = LayerTime(
            compute_s=batch_size * core_seconds(layer, figures.kernel_efficiency) / cores,
            memory_s=batch_size * memory_core_seconds(layer) / cores,
            fabric_s=batch_size * _edge_s(layer, network.is_training, links),
            io_s=batch_size * network.sample_bytes / facts.IO_BYTES_PER_S.value if layer is network.layers[0] else 0.0,
        )
        placed.append(PlacedLayer(layer, time, demand.num_bytes, rectangle))
    interval_s = max((layer.time.seconds for layer in placed), default=0.0) / max(batch_size, 1)
    overhead_s = figures.step_overhead_s + crossing_s() + in_flight * interval_s
    return Simulation(
        mode="pipelined",
        num_csx=1,
        batch_size=batch_size,
        micro_batches=1,
        layers=tuple(placed),
        step_s=batch_size * interval_s + overhead_s,
        overhead_s=overhead_s,
        sent_bytes=batch_size * network.sample_bytes,
        received_bytes=0.0,
        kept_bytes=sum(demand.num_bytes for demand in demands),
        problem=problem,
    )


def samples_in_flight(network: Network) -> int:
    """Return the samples that are in the pipeline at a time, beside the one that leaves it.

    A matrix product passes on each row as it comes. Attention needs a whole sample before its first result, so each
    attention layer holds one; in training the backward pass holds as many again.
    """
    num_whole = sum(layer.kind == ATTENTION for layer in network.layers)
    return num_whole * (2 if network.is_training else 1) + 1


def _demands(network: Network, efficiency: float) -> list[Demand]:
    """Return what each layer asks of the wafer.

    The weights stay on the wafer with the optimizer's copy and slots. In training each layer keeps its input of every
    sample that is between its forward and its backward pass.
    """
    after = sum(layer.kind == ATTENTION for layer in network.layers)
    state_bytes = ELEMENT_BYTES
    demands = []
    for layer in network.layers:
        after -= layer.kind == ATTENTION
        held = 2 * after + 1 if network.is_training else 1
        trained = _MASTER_BYTES * (1 + network.slots) if network.is_training and layer.gradient_bytes else 0
        num_bytes = layer.num_own_weights * (state_bytes + trained)
        num_bytes += ELEMENT_BYTES * (held * layer.input_elements + layer.output_elements)
        core_s = max(core_seconds(layer, efficiency), memory_core_seconds(layer))
        demands.append(Demand(layer.name, core_s, num_bytes))
    return demands


def _edge_s(layer: Layer, is_training: bool, links: float) -> float:
    """Return the time in which a sample's activations, and their gradients, cross the edges of a rectangle [s].

    Neighbours in a strip share an edge as long as the strip is wide.
    """
    ways = 2 if is_training else 1
    return ways * edge_seconds(max(layer.input_elements, layer.output_elements), links)
