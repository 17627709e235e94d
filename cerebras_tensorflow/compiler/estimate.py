"""Estimates the speed of a Program on a CS-2, with a simple model. Every figure here is simulated."""

from __future__ import annotations

from dataclasses import dataclass

from cerebras_tensorflow.graph.micro_batches import TOTAL
from cerebras_tensorflow.graph.program import Program
from cerebras_tensorflow.system import facts

# Share of the peak that a model reaches. Assumed, on the low side: there is no public figure.
UTILIZATION = 0.3


@dataclass(frozen=True)
class Estimate:
    """Simulated speed of one step.

    Attributes:
        batch_size: Samples in a step.
        flops: Floating-point operations of a step.
        transmitted_bytes: Bytes over the system's links in a step: the batch, and in weight streaming the weights.
        compute_s: Simulated time of computation [s]. Computation and transmission overlap.
        transmission_s: Simulated time of transmission [s].
        assumptions: Where the figures come from.
    """

    batch_size: int
    flops: float
    transmitted_bytes: int
    compute_s: float
    transmission_s: float
    assumptions: tuple[str, ...]

    @property
    def step_s(self) -> float:
        """Simulated time of a step [s]: the longer of computation and transmission."""
        return max(self.compute_s, self.transmission_s)

    @property
    def samples_per_s(self) -> float:
        """Simulated samples per second."""
        return self.batch_size / self.step_s if self.step_s else 0.0

    @property
    def compute_samples_per_s(self) -> float:
        """Simulated samples per second if transmission took no time."""
        return self.batch_size / self.compute_s if self.compute_s else 0.0

    @property
    def transmission_samples_per_s(self) -> float:
        """Simulated samples per second if computation took no time."""
        return self.batch_size / self.transmission_s if self.transmission_s else 0.0


def estimate(program: Program, batch_size: int, batch_bytes: int, num_flops: float) -> Estimate:
    """Return the simulated speed of a Program.

    Args:
        program: The Program. Its schedule gives the weights that cross the links.
        batch_size: Samples in a step.
        batch_bytes: Bytes of a batch.
        num_flops: Floating-point operations of a step.
    """
    # Published: only weights and gradients cross the links. MemoryX holds the optimizer's state and applies updates.
    state = _optimizer_state(program)
    weights = sum(
        event.num_bytes * program.repeats(event)
        for event in program.events
        if event.kind == "load" and event.weight not in state
    )
    read = {event.weight for event in program.events if event.kind != "update"} - state
    gradients = sum(e.num_bytes for e in program.events if e.kind == "update" and e.weight in read)
    transmitted = batch_bytes + weights + gradients
    peak = facts.HALF_PRECISION_FLOPS.value
    return Estimate(
        batch_size=batch_size,
        flops=num_flops,
        transmitted_bytes=transmitted,
        compute_s=num_flops / (peak * UTILIZATION),
        transmission_s=transmitted / facts.IO_BYTES_PER_S.value,
        assumptions=(
            f"compute: {UTILIZATION:.0%} (assumed) of {peak:.3g} FLOP/s ({facts.HALF_PRECISION_FLOPS.status})",
            f"links: {facts.IO_BYTES_PER_S.value:.3g} B/s ({facts.IO_BYTES_PER_S.status})",
        ),
    )


def _optimizer_state(program: Program) -> set[int]:
    """Return the indices of the variables that are not sent to the wafer: optimizer slots, and totals of gradients.

    The name of a slot shows it: `kernel/Adam` is a slot of `kernel`. Events do not: an optimizer made of assigns reads
    its slots in the same way as a model reads its weights.
    """
    names = {spec.name for spec in (*program.streamed, *program.resident)}
    parts = {index: spec.name.split("/") for index, spec in enumerate(program.streamed)}
    return {
        index
        for index, words in parts.items()
        if program.streamed[index].name.startswith(TOTAL)
        or any("/".join(words[:count]) in names for count in range(1, len(words)))
    }
