"""Published speeds beside those of the model: `python -m cerebras_tensorflow.system.wafer.published` prints a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cerebras_tensorflow.system import facts
from cerebras_tensorflow.system.wafer.simulate import Workload, simulate
from cerebras_tensorflow.system.wafer.transformers import (
    BERT_LARGE,
    FC_MNIST,
    GENSLM_1_3B,
    GPTJ_6B,
    LLAMA_7B,
    Transformer,
    dense_layers,
)

_ALCF = "argonne-lcf/user-guides, training logs"
_RECALLED = f"{_ALCF} of R2.0.3; recalled, not read again"
_GENSLM = "GenSLM runs on Andromeda, 2022"
_BERT = "BERT-large, MSL 128"
_STATE_BYTES = 12  # of a weight in a checkpoint: itself and two slots of the optimizer, in float32


@dataclass(frozen=True)
class KernelRun:
    """A published speed that fits the efficiency of its releases' kernels.

    Attributes:
        model: The model, in words.
        shape: Shape of the model.
        workload: What the run asked of the systems.
        samples_per_s: What was published.
        source: Who published it.
    """

    model: str
    shape: Transformer
    workload: Workload
    samples_per_s: float
    source: str = _ALCF

    @property
    def name(self) -> str:
        """The run, in words."""
        work = self.workload
        systems, samples = work.num_csx, work.num_csx * work.batch_size
        return f"{self.model}, {work.mode.replace('_', ' ')}, R{work.release}, {systems} CS-2, batch {samples}"

    def simulated(self) -> float:
        """Return the samples/s of the model."""
        return simulate(self.shape.network(), self.workload).samples_per_s


def _streaming(batch_size: int, num_csx: int, release: str) -> Workload:
    return Workload("weight_streaming", batch_size, num_csx, release=release)


RUNS_1 = (
    KernelRun(_BERT, BERT_LARGE, Workload("pipelined", 1024, release="1.7.1"), 6370),
    KernelRun("GPT-J 6B", GPTJ_6B, _streaming(65, 2, "1.7.1"), 27.53),
    KernelRun("GPT-J 6B", GPTJ_6B, _streaming(65, 2, "1.8.0"), 65_000 / 2_960),
)
"""Runs that fit KERNEL_EFFICIENCY_1."""

RUNS_2 = (
    KernelRun("Llama-7B", LLAMA_7B, _streaming(99, 1, "2.1.1"), 20.45),
    # Times are recalled too: 100 steps of 120 samples in 274.66 s, and 100 of 1,024 samples in 25.1 to 25.5 s.
    KernelRun("GPT-J 6B", GPTJ_6B, _streaming(60, 2, "2.0.3"), 43.70, _RECALLED),
    KernelRun(_BERT, BERT_LARGE, _streaming(1024, 1, "2.0.3"), 4040, _RECALLED),
)
"""Runs that fit KERNEL_EFFICIENCY_2."""


@dataclass(frozen=True)
class PublishedRun:
    """One published figure.

    Attributes:
        name: The run, in words.
        source: Who published it.
        unit: Unit of the figure.
        figure: The published value.
        ours: Returns the value of the model.
        use: Which fitted figure of the model it fits, in words.
    """

    name: str
    source: str
    unit: str
    figure: float
    ours: Callable[[], float]
    use: str

    @property
    def ratio(self) -> float:
        """The model's value over the published one."""
        return self.ours() / self.figure


def published_runs() -> list[PublishedRun]:
    """Return the published runs that we know."""
    return [*_speeds(), *_transfers()]


def _speeds() -> list[PublishedRun]:
    uses = [(run, "fits the kernels of 1.x") for run in RUNS_1] + [(run, "fits the kernels of 2.x") for run in RUNS_2]
    kernel_runs = [
        PublishedRun(run.name, run.source, "samples/s", run.samples_per_s, run.simulated, use) for run, use in uses
    ]
    return [
        *kernel_runs,
        PublishedRun(
            "of the size of fc_mnist, pipelined, 1 CS-2, batch 256 (assumed), 2022",
            _ALCF,
            "samples/s",
            479_188,
            lambda: simulate(dense_layers(FC_MNIST), Workload("pipelined", 256)).samples_per_s,
            "fits the overhead of a step",
        ),
        PublishedRun(
            "1.3 B genomic model, MSL 10,240: hours on 2 CS-2 over hours on 4",
            _GENSLM,
            "",
            4.1 / 2.4,
            _speed_up_of_a_run,
            "fits the start of a run",
        ),
    ]


def _transfers() -> list[PublishedRun]:
    return [
        PublishedRun(
            "GPT-J 6B, R1.7.1: initial weights sent",
            _ALCF,
            "s",
            129,
            lambda: _gptj_bytes(4, _send_rate()),
            "fits the rate of sending",
        ),
        PublishedRun(
            "GPT-J 6B, R1.7.1: a checkpoint saved",
            _ALCF,
            "s",
            230,
            lambda: _gptj_bytes(_STATE_BYTES, _save_rate()),
            "fits the rate of saving",
        ),
        PublishedRun(
            "GPT-J 6B, R1.8.0: a checkpoint saved",
            _ALCF,
            "s",
            304,
            lambda: _gptj_bytes(_STATE_BYTES, _save_rate()),
            "fits the rate of saving",
        ),
    ]


def table() -> str:
    """Return the published runs as a table in Markdown."""
    lines = ["| published run | source | published | simulated | ratio | used |", "|---|---|---|---|---|---|"]
    for run in published_runs():
        unit = f" {run.unit}" if run.unit else ""
        words = (
            run.name,
            run.source,
            f"{run.figure:,.4g}{unit}",
            f"{run.ours():,.4g}{unit}",
            f"{run.ratio:.2f}",
            run.use,
        )
        lines.append(f"| {' | '.join(words)} |")
    return "\n".join(lines) + "\n"


def run_s(step_s: float, num_steps: int) -> float:
    """Return the simulated time of a whole run [s]: compilation and start-up, and then its steps."""
    return facts.RUN_START_S.value + num_steps * step_s


def _speed_up_of_a_run() -> float:
    """Return how much faster a whole run is on 4 systems than on 2, with the samples that take 4.1 h on 2."""
    network = GENSLM_1_3B.network()
    two, four = (simulate(network, _streaming(8, count, "1.7")) for count in (2, 4))
    samples = (4.1 * 3600 - facts.RUN_START_S.value) * two.samples_per_s
    hours = [run_s(step.step_s, round(samples / step.batch_size)) / 3600 for step in (two, four)]
    return hours[0] / hours[1]


def _gptj_bytes(bytes_of_weight: int, bytes_per_s: float) -> float:
    return GPTJ_6B.network().num_weights * bytes_of_weight / bytes_per_s


def _send_rate() -> float:
    return facts.INITIAL_WEIGHT_BYTES_PER_S.value


def _save_rate() -> float:
    return facts.CHECKPOINT_BYTES_PER_S.value


if __name__ == "__main__":
    print(table(), end="")
