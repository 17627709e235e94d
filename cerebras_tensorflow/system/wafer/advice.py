"""What limits a simulated step, and what a user may change: sentences for reports."""

from __future__ import annotations

from cerebras_tensorflow.system.wafer.figures import figures
from cerebras_tensorflow.system.wafer.placement import ROWS
from cerebras_tensorflow.system.wafer.simulation import Simulation
from cerebras_tensorflow.system.wafer.times import vector_share

_FEW = 0.6  # share of cycles with useful work, below which a larger batch pays
_MUCH = 0.1  # share of the step that is worth a sentence


def advice(simulation: Simulation) -> list[str]:
    """Return sentences that say what to change, the most useful one first."""
    if not simulation.step_s:
        return []
    limits = simulation.limits()
    share = {name: seconds / simulation.step_s for name, seconds in limits.items()}
    texts = []
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
            f"Filling and draining the layers takes {share['fill and drain']:.0%} of the step: once for each "
            "layer and micro-batch, so fewer micro-batches or a larger batch_size help."
        )
    if share.get("fabric", 0) > _MUCH:
        texts.append(
            f"Activations on their way between cores take {share['fabric']:.0%} of the step: make the layers "
            "wider, and they compute more for each value that moves."
        )
    if simulation.mode != "pipelined" and _useful_share(simulation) < _FEW:
        texts.append(
            f"Weights meet few rows each ({_useful_share(simulation):.0%} of the cores' cycles do useful work): a "
            "larger batch_size or longer sequences give each weight more to do."
        )
    if simulation.is_recomputed:
        texts.append(
            "Layers are computed again in the backward pass, a third more work, because their activations do not fit "
            "on the wafer: a smaller micro_batch_size avoids it where the weights still meet enough rows."
        )
    if not texts:
        more = "; more systems (num_csx) share the work" if simulation.mode != "pipelined" else ""
        texts = [f"Computing takes most of the step, so nothing here is in its way{more}."]
    return [f"Change: {text}" for text in texts]


def _useful_share(simulation: Simulation) -> float:
    """Return the share of cycles with useful work in the layer that takes most of the step."""
    placed = next((placed for placed in simulation.slowest() if placed.layer.num_weights and placed.layer.flops), None)
    if placed is None:
        return 1.0
    samples = simulation.batch_size / simulation.num_csx / simulation.micro_batches
    return vector_share(placed.layer.rows * samples, ROWS, figures().vector_start_cycles)
