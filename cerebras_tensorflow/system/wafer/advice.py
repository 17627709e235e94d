"""What limits a simulated step, and what a user may change: sentences for reports."""

from __future__ import annotations

from collections.abc import Callable

from cerebras_tensorflow.system.wafer.figures import figures
from cerebras_tensorflow.system.wafer.layers import Layer
from cerebras_tensorflow.system.wafer.placement import COLUMNS, ROWS
from cerebras_tensorflow.system.wafer.simulation import Simulation
from cerebras_tensorflow.system.wafer.times import product_column_share, vector_share
from cerebras_tensorflow.units import format_bytes

_FEW = 0.6  # share of cycles with useful work, below which a larger batch pays
_WIDE = 0.7  # share of the columns' time that is useful, below which the width of a model is worth a sentence
_MUCH = 0.1  # share of the step that is worth a sentence


def advice(simulation: Simulation) -> list[str]:
    """Return sentences that say what to change, the most useful one first."""
    if not simulation.step_s:
        return []
    limits = simulation.limits()
    share = {name: seconds / simulation.step_s for name, seconds in limits.items()}
    texts = []
    if simulation.unknown_loops:
        texts.append(
            f"The graph does not tell how often {_some(simulation.unknown_loops)} runs, so its work counts once and "
            "the estimate is too fast: give the loop a constant maximum_iterations."
        )
    if share.get("step overhead", 0) > _MUCH:
        texts.append(
            f"Begin and end of a step, and filling the pipeline, take {share['step overhead']:.0%} of it: a "
            "larger batch_size shares that among more samples."
        )
    if share.get("I/O", 0) > _MUCH:
        texts.append(
            f"The links take {share['I/O']:.0%} of the step: weights wait for their turn. A larger batch_size uses "
            "each weight for more samples; fewer micro-batches send it less often."
        )
    if share.get("fill and drain", 0) > _MUCH:
        texts.append(
            f"Filling and draining the layers takes {share['fill and drain']:.0%} of the step: each pass over a layer "
            "waits for its first weight and its last value, so fewer micro-batches or a larger batch_size help."
        )
    if share.get("fabric", 0) > _MUCH:
        texts.append(
            f"Activations on their way between cores take {share['fabric']:.0%} of the step: make the layers "
            "wider, and they compute more for each value that moves."
        )
    if simulation.mode != "pipelined" and (useful := _mean_share(simulation, _row_share)) < _FEW:
        texts.append(
            f"Weights meet few rows each ({useful:.0%} of the cores' cycles do useful work): a "
            "larger batch_size or longer sequences give each weight more to do."
        )
    if simulation.mode != "pipelined" and (narrow := _narrow_product(simulation)):
        texts.append(narrow)
    if simulation.is_recomputed:
        texts.append(
            "Layers are computed again in the backward pass, a third more work, because their activations do not fit "
            "on the wafer: a smaller micro_batch_size avoids it where the weights still meet enough rows."
        )
    if not texts:
        more = "; more systems (num_csx) share the work" if simulation.mode != "pipelined" else ""
        texts = [f"Computing takes most of the step, so nothing here is in its way{more}."]
    return [f"Change: {text}" for text in texts]


def _some(names: tuple[str, ...]) -> str:
    first = f"the loop {names[0]}"
    return f"{first} (and {len(names) - 1} more)" if len(names) > 1 else first


def input_need(simulation: Simulation) -> str:
    """Return what the input must give, so that the simulated systems do not wait for it."""
    per_s = simulation.samples_per_s
    rate = f"{per_s:{',.0f' if per_s >= 1000 else '.3g'}} samples/s, {format_bytes(simulation.input_bytes_per_s)}/s"
    systems = f"{simulation.num_csx} systems" if simulation.num_csx > 1 else "the system"
    return (
        f"Input: the hosts must make {rate} for {systems}; with less, the simulated speed is not reached. "
        "cs_input_analyzer measures how many input workers give it."
    )


def _narrow_product(simulation: Simulation) -> str:
    """Return a sentence about the matrix products, if their features leave many columns waiting."""
    if _mean_share(simulation, _column_share) >= _WIDE:
        return ""
    slowest = (placed.layer for placed in simulation.slowest(len(simulation.layers)) if placed.layer.input_features)
    layer = next(layer for layer in slowest if _column_share(layer, simulation) < _WIDE)
    return (
        f"{layer.name} makes {layer.output_features:,.0f} features of {layer.input_features:,.0f}. Each of the "
        f"{COLUMNS:,} columns of cores (assumed) takes whole features, so {_column_share(layer, simulation):.0%} of "
        "their time is useful: a multiple of the columns, or a size just below one, uses them best."
    )


def _column_share(layer: Layer, simulation: Simulation) -> float:
    return product_column_share(layer, COLUMNS, 1 + simulation.is_recomputed, simulation.received_bytes > 0)


def _row_share(layer: Layer, simulation: Simulation) -> float:
    samples = simulation.batch_size / simulation.num_csx / simulation.micro_batches
    return vector_share(layer.rows * samples, ROWS, figures().vector_start_cycles)


def _mean_share(simulation: Simulation, share: Callable[[Layer, Simulation], float]) -> float:
    """Return the share of useful cycles in the time that layers with weights compute; 1 if none does."""
    busy = [
        placed
        for placed in simulation.layers
        if placed.layer.num_weights and placed.layer.flops and placed.time.compute_s
    ]
    useful_s = sum(share(placed.layer, simulation) * placed.time.compute_s for placed in busy)
    return useful_s / sum(placed.time.compute_s for placed in busy) if busy else 1.0
