"""Weight streaming: layers take turns on the whole wafer; weights arrive and gradients leave."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cerebras_tensorflow.errors import PlacementError
from cerebras_tensorflow.system import facts
from cerebras_tensorflow.system.wafer.cluster import way_s
from cerebras_tensorflow.system.wafer.figures import Figures
from cerebras_tensorflow.system.wafer.layers import ATTENTION, EMBEDDING, MATRIX_PRODUCT, Layer, Network, blocks
from cerebras_tensorflow.system.wafer.placement import COLUMNS, CORE_DATA_BYTES, ROWS, Rectangle
from cerebras_tensorflow.system.wafer.simulation import PlacedLayer, Simulation
from cerebras_tensorflow.system.wafer.times import (
    ELEMENT_BYTES,
    LayerTime,
    core_seconds,
    crossing_s,
    edge_seconds,
    memory_core_seconds,
    product_column_share,
    vector_share,
)
from cerebras_tensorflow.units import format_bytes

_WAFER = Rectangle(0, 0, COLUMNS, ROWS)


@dataclass(frozen=True)
class _Schedule:
    """How a system computes its batch.

    Attributes:
        parts: Number of micro-batches.
        samples: Samples of a micro-batch.
        is_recomputed: Whether only the input of each block (of those with attention, if there are any) is kept for the
            backward pass.
    """

    parts: int
    samples: float
    is_recomputed: bool


def simulate_weight_streaming(
    network: Network,
    batch_size: int,
    figures: Figures,
    allow_oversize: bool,
    num_csx: int = 1,
    micro_batch_size: int | None = None,
) -> Simulation:
    """Return the simulated step of a network in weight streaming.

    Args:
        network: The layers.
        batch_size: Samples that one system takes in a step.
        figures: Fitted and assumed figures.
        allow_oversize: Whether to go on if not even one sample's activations fit on the wafer.
        num_csx: Systems, each with a batch of its own and the same weights.
        micro_batch_size: Most samples that a system computes at a time. None: what fits on the wafer and is fastest.

    Raises:
        PlacementError: If not even the activations of one sample fit.
    """
    problem = ""
    try:
        schedules = _schedules(network, max(batch_size, 1), micro_batch_size)
    except PlacementError as error:
        if not allow_oversize:
            raise
        problem, schedules = str(error), [_Schedule(1, batch_size, True)]

    def layer_times(schedule: _Schedule) -> list[LayerTime]:
        return [_time(layer, network, schedule, figures, num_csx) for layer in network.layers]

    def length_s(schedule: _Schedule) -> float:
        return sum(time.seconds for time in layer_times(schedule))

    best = min(schedules, key=length_s)
    times = layer_times(best)
    kept = _kept_elements(network, best.is_recomputed) * best.samples * ELEMENT_BYTES
    placed = tuple(
        PlacedLayer(layer, time, _held_bytes(layer, best.samples), _WAFER)
        for layer, time in zip(network.layers, times, strict=True)
    )
    return Simulation(
        mode="weight_streaming",
        num_csx=num_csx,
        batch_size=batch_size * num_csx,
        micro_batches=best.parts,
        layers=placed,
        step_s=sum(time.seconds for time in times) + figures.step_overhead_s,
        overhead_s=figures.step_overhead_s,
        sent_bytes=batch_size * network.sample_bytes
        + best.parts * sum(_weights_in(layer, network, best) for layer in network.layers),
        received_bytes=best.parts * sum(layer.gradient_bytes for layer in network.layers),
        kept_bytes=kept,
        is_recomputed=best.is_recomputed,
        problem=problem,
    )


def _schedules(network: Network, batch_size: int, micro_batch_size: int | None) -> list[_Schedule]:
    """Return the schedules that fit on the wafer: with and without computing layers again.

    Raises:
        PlacementError: If none fits.
    """
    capacity = ROWS * COLUMNS * CORE_DATA_BYTES
    working = max(((layer.input_elements + layer.output_elements) for layer in network.layers), default=0.0)
    result = []
    for is_recomputed in (False, True) if network.is_training else (False,):
        sample_bytes = (_kept_elements(network, is_recomputed) + working) * ELEMENT_BYTES
        most = math.floor(capacity / sample_bytes) if sample_bytes else batch_size
        if most:
            parts = -(-batch_size // min(most, micro_batch_size or batch_size))
            result.append(_Schedule(parts, batch_size / parts, is_recomputed))
    if not result:
        largest = max(network.layers, key=lambda layer: layer.input_elements + layer.output_elements)
        raise PlacementError(
            f"the activations of one sample need {format_bytes(sample_bytes)}, and the wafer has "
            f"{format_bytes(capacity)}. Layer {largest.name} needs most: {format_bytes(_held_bytes(largest, 1))}. Use "
            "shorter sequences or a smaller model; --allow_oversize goes on anyway."
        )
    return result


def _kept_elements(network: Network, is_recomputed: bool) -> float:
    """Return the elements of a sample that stay on the wafer until the backward pass."""
    if not network.is_training:
        return 0.0
    if is_recomputed:
        groups = blocks(network.layers).values()
        with_attention = [group for group in groups if any(layer.kind == ATTENTION for layer in group)]
        return sum(group[0].input_elements for group in with_attention or groups)
    return sum(layer.input_elements for layer in network.layers)


def _held_bytes(layer: Layer, samples: float) -> float:
    """Return the bytes on the wafer while a layer is computed, without what other layers keep."""
    return ELEMENT_BYTES * samples * (layer.input_elements + layer.output_elements)


def _weights_in(layer: Layer, network: Network, schedule: _Schedule) -> float:
    """Return the bytes of weights that arrive for one micro-batch: for each pass over the layer once."""
    if layer.is_gathered:
        return 0.0 if not layer.rows else min(layer.weight_bytes, layer.output_elements * schedule.samples * 4)
    passes = 1 + network.is_training + (schedule.is_recomputed and network.is_training)
    return layer.weight_bytes * passes


def _time(layer: Layer, network: Network, schedule: _Schedule, figures: Figures, num_csx: int) -> LayerTime:
    """Return the time of a layer in a whole step."""
    forward_passes = 1 + (schedule.is_recomputed and network.is_training)
    again = 1 + (layer.forward_flops / layer.flops if schedule.is_recomputed and layer.flops else 0.0)
    efficiency = figures.kernel_efficiency
    if layer.num_weights and layer.kind != EMBEDDING and layer.flops:
        efficiency *= vector_share(layer.rows * schedule.samples, ROWS, figures.vector_start_cycles)
        efficiency *= product_column_share(layer, COLUMNS, forward_passes, network.is_training)
    compute_s = schedule.samples * again * core_seconds(layer, efficiency) / _WAFER.cores
    passes = forward_passes + network.is_training
    weights_s = _weights_in(layer, network, schedule) / facts.IO_BYTES_PER_S.value
    batch_s = schedule.samples * network.sample_bytes / facts.IO_BYTES_PER_S.value
    gradients_s = layer.gradient_bytes / facts.IO_BYTES_PER_S.value
    one = LayerTime(
        compute_s=compute_s,
        memory_s=schedule.samples * again * memory_core_seconds(layer) / _WAFER.cores,
        fabric_s=passes * schedule.samples * _crossing_s(layer),
        io_s=max(weights_s + (batch_s if layer is network.layers[0] else 0.0), gradients_s),
        fill_s=passes * (crossing_s() + (way_s(num_csx, figures.cluster_hop_s) if layer.num_weights else 0.0)),
    )
    return LayerTime(*(schedule.parts * part for part in vars(one).values()))


def _crossing_s(layer: Layer) -> float:
    """Return the time in which the results of one pass and one sample move along the rows of the wafer [s].

    The partial sums of a product cross in single precision, so each fills a wavelet.
    """
    is_summed = layer.kind in (MATRIX_PRODUCT, ATTENTION)
    elements = max(layer.input_elements, layer.output_elements)
    return edge_seconds(elements * (facts.SUM_BYTES.value / ELEMENT_BYTES if is_summed else 1), ROWS)
