"""What a report shows: the simulated step, the plan for this machine, and the record of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cerebras_tensorflow.perf.timeline import Timeline
from cerebras_tensorflow.system.wafer.layers import Network
from cerebras_tensorflow.system.wafer.simulation import Simulation


@dataclass(frozen=True)
class SparseShare:
    """The share of zeros of one sparse weight.

    Attributes:
        name: Name of the weight.
        algorithm: What chooses its zeros.
        target: Share that the schedule asks for; None if a caller's object chooses.
        actual: Share that its mask has.
    """

    name: str
    algorithm: str
    target: float | None
    actual: float


@dataclass(frozen=True)
class RunRecord:
    """What a run measured.

    Attributes:
        steps: Global steps that were recorded.
        losses: The loss of each.
        samples_per_s: Rate up to each, since the one before.
        figures: Name and value of the run's other figures, as text.
        sparsity: The sparse weights at the end of the run.
    """

    steps: Sequence[int] = ()
    losses: Sequence[float] = ()
    samples_per_s: Sequence[float] = ()
    figures: Sequence[tuple[str, str]] = ()
    sparsity: Sequence[SparseShare] = ()


@dataclass(frozen=True)
class Content:
    """Everything in one report.

    Attributes:
        title: Name of the model or of the run's folder.
        simulation: The simulated step.
        network: The layers that it was made of.
        planned: Planned timeline of this machine, None if there is none.
        measured: Recorded timeline of this machine, None if no step was recorded.
        memory: Name, bytes and meaning of each part of the memory plan of this machine.
        record: What the run measured. None: nothing has run.
        scaling: The simulated step for several numbers of systems.
    """

    title: str
    simulation: Simulation
    network: Network
    planned: Timeline | None = None
    measured: Timeline | None = None
    memory: Sequence[tuple[str, int, str]] = ()
    record: RunRecord | None = None
    scaling: Mapping[int, Simulation] = field(default_factory=dict)
