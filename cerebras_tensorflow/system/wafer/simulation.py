"""The result of the model: the simulated time of a step, layer by layer, and what limits it."""

from __future__ import annotations

from dataclasses import dataclass, field

from cerebras_tensorflow.system.wafer.layers import Layer
from cerebras_tensorflow.system.wafer.placement import Rectangle
from cerebras_tensorflow.system.wafer.times import LayerTime


@dataclass(frozen=True)
class PlacedLayer:
    """A layer on the wafer.

    Attributes:
        layer: The layer.
        time: Its time in a step.
        num_bytes: Weights and activations in the memory of its cores.
        rectangle: Its cores. None: not placed.
    """

    layer: Layer
    time: LayerTime
    num_bytes: float
    rectangle: Rectangle | None


@dataclass(frozen=True)
class Simulation:
    """One simulated step.

    Attributes:
        mode: "pipelined" or "weight_streaming".
        num_csx: Systems.
        batch_size: Samples in a step, of all systems together.
        micro_batches: Parts in which each system computes its batch.
        layers: The layers, in the order of the forward pass.
        step_s: Time of a step [s].
        overhead_s: The part of it that belongs to no layer: begin and end of the step, filling the pipeline [s].
        sent_bytes, received_bytes: Over the links of one system, in a step.
        kept_bytes: Activations that stay on one wafer until the backward pass, at most.
        is_recomputed: Whether layers inside of a block are computed again in the backward pass, to save memory.
        problem: Why the model does not fit on the wafer; "" if it does.
        sample_bytes: Bytes of one sample of the input.
        unknown_loops: Loops whose length is unknown; their work counts once.
        slow_step_s, fast_step_s: Range of step_s, from the ranges of the fitted and assumed figures.
    """

    mode: str
    num_csx: int
    batch_size: int
    micro_batches: int
    layers: tuple[PlacedLayer, ...]
    step_s: float
    overhead_s: float
    sent_bytes: float
    received_bytes: float
    kept_bytes: float = 0.0
    is_recomputed: bool = False
    problem: str = ""
    sample_bytes: float = 0.0
    unknown_loops: tuple[str, ...] = ()
    slow_step_s: float = 0.0
    fast_step_s: float = 0.0
    assumptions: tuple[str, ...] = field(default=())

    @property
    def flops(self) -> float:
        """Floating-point operations of a step, without what is computed again."""
        return self.batch_size * sum(placed.layer.flops for placed in self.layers)

    @property
    def samples_per_s(self) -> float:
        """Simulated samples per second, of all systems together."""
        return self.batch_size / self.step_s if self.step_s else 0.0

    @property
    def samples_range(self) -> tuple[float, float]:
        """The slow and the fast end of samples_per_s."""
        slow, fast = self.slow_step_s or self.step_s, self.fast_step_s or self.step_s
        return (self.batch_size / slow, self.batch_size / fast) if slow and fast else (0.0, 0.0)

    @property
    def transmitted_bytes(self) -> float:
        """Bytes over the links of one system in a step, both ways."""
        return self.sent_bytes + self.received_bytes

    @property
    def input_bytes_per_s(self) -> float:
        """Bytes of samples that the hosts must give to all systems together, so that no system waits for input."""
        return self.samples_per_s * self.sample_bytes

    @property
    def compute_samples_per_s(self) -> float:
        """Simulated samples per second if only computation took time."""
        return self._rate_of([placed.time.compute_s for placed in self.layers])

    @property
    def transmission_samples_per_s(self) -> float:
        """Simulated samples per second if only the links took time."""
        return self._rate_of([placed.time.io_s for placed in self.layers])

    def _rate_of(self, seconds: list[float]) -> float:
        # Pipelined layers work at the same time, and the slowest one decides; streamed ones follow each other.
        total = max(seconds, default=0.0) if self.mode == "pipelined" else sum(seconds)
        return self.batch_size / total if total else 0.0

    def slowest(self, count: int = 10) -> list[PlacedLayer]:
        """Return the layers that take most time, the slowest first."""
        return sorted(self.layers, key=lambda placed: -placed.time.seconds)[:count]

    def limits(self) -> dict[str, float]:
        """Return the time of a step by what limits it [s], the longest first."""
        parts: dict[str, float] = {}
        if self.mode == "pipelined":
            busiest = max(self.layers, key=lambda placed: placed.time.seconds, default=None)
            if busiest is not None:
                parts[busiest.time.limit] = busiest.time.seconds
        else:
            for placed in self.layers:
                for name, seconds in placed.time.waits.items():
                    parts[name] = parts.get(name, 0.0) + seconds
        parts["step overhead"] = self.overhead_s
        return dict(sorted(parts.items(), key=lambda item: -item[1]))
