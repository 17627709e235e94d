"""When each layer works during a simulated step, and the activations that the wafer holds meanwhile."""

from __future__ import annotations

from dataclasses import dataclass

from cerebras_tensorflow.system.wafer.layers import ATTENTION
from cerebras_tensorflow.system.wafer.simulation import PlacedLayer, Simulation
from cerebras_tensorflow.system.wafer.times import ELEMENT_BYTES

WEIGHTS_IN, WAFER, GRADIENTS_OUT = "weights in", "wafer", "gradients out"
_SAMPLES_SHOWN = 4


@dataclass(frozen=True)
class Work:
    """One interval of work.

    Attributes:
        lane: Where: one of the names above, or in pipelined mode a layer.
        name: What is done.
        part: "forward", "backward", "transfer" or, in pipelined mode, the sample.
        begin_s, end_s: From the beginning of the step [s].
    """

    lane: str
    name: str
    part: str
    begin_s: float
    end_s: float


def schedule(simulation: Simulation, is_training: bool) -> list[Work]:
    """Return the work of a step: of one micro-batch in weight streaming, of the first samples in pipelined mode."""
    if simulation.mode == "pipelined":
        return _pipelined(simulation, is_training)
    work = []
    now = 0.0
    for placed, part, share in _passes(simulation, is_training):
        length_s = share * placed.time.seconds / simulation.micro_batches
        work.append(Work(WAFER, placed.layer.name, part, now, now + length_s))
        if placed.layer.num_weights:
            moves_s = min(share * placed.time.io_s / simulation.micro_batches, length_s)
            work.append(Work(WEIGHTS_IN, placed.layer.name, "transfer", now, now + moves_s))
            if part == "backward" and placed.layer.gradient_bytes:
                work.append(
                    Work(GRADIENTS_OUT, placed.layer.name, "transfer", now + length_s - moves_s, now + length_s)
                )
        now += length_s
    return work


def held_activations(simulation: Simulation, is_training: bool) -> list[tuple[float, float]]:
    """Return (time [s], bytes of activations on the wafer from then on) in weight streaming, for one micro-batch.

    In pipelined mode nothing moves: one point.
    """
    if simulation.mode == "pipelined":
        return [(0.0, simulation.kept_bytes), (simulation.step_s, simulation.kept_bytes)]
    samples = simulation.batch_size / simulation.num_csx / simulation.micro_batches
    total = sum(placed.layer.input_elements for placed in simulation.layers) * samples * ELEMENT_BYTES
    kept_share = simulation.kept_bytes / total if total else 0.0  # less than 1 if layers are computed again
    now, held, curve = 0.0, 0.0, []
    for placed, part, share in _passes(simulation, is_training):
        change = placed.layer.input_elements * samples * ELEMENT_BYTES * kept_share if is_training else 0.0
        held += change if part == "forward" else -change
        working = (placed.layer.input_elements + placed.layer.output_elements) * samples * ELEMENT_BYTES
        curve.append((now, max(held, 0.0) + working))
        now += share * placed.time.seconds / simulation.micro_batches
    return [*curve, (now, 0.0)]


def _passes(simulation: Simulation, is_training: bool) -> list[tuple[PlacedLayer, str, float]]:
    """Return (layer, pass, share of its time) in the order of a step."""
    if not is_training:
        return [(placed, "forward", 1.0) for placed in simulation.layers]
    forward = 1 / (4 if simulation.is_recomputed else 3)
    first = [(placed, "forward", forward) for placed in simulation.layers]
    return first + [(placed, "backward", 1 - forward) for placed in reversed(simulation.layers)]


def _pipelined(simulation: Simulation, is_training: bool) -> list[Work]:
    """Return the way of the first samples through the layers that hold a whole sample each."""
    stages = [placed.layer.name for placed in simulation.layers if placed.layer.kind == ATTENTION]
    stages = stages or [placed.layer.name for placed in simulation.layers if placed.layer.num_weights]
    slowest = max((placed.time.seconds for placed in simulation.layers), default=0.0)
    interval_s = slowest / max(simulation.batch_size, 1)
    work = []
    for sample in range(min(_SAMPLES_SHOWN, simulation.batch_size)):
        for number, name in enumerate(stages):
            places = [number, 2 * len(stages) - 1 - number] if is_training else [number]
            for place, direction in zip(places, ("forward", "backward"), strict=False):
                begin_s = (sample + place) * interval_s
                text = f"sample {sample + 1}, {direction}"
                work.append(Work(name, text, f"sample {sample + 1}", begin_s, begin_s + interval_s))
    return work
