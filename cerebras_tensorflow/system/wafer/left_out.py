"""A test for over-fitting: each published speed, from figures that were fitted without it.

`python -m cerebras_tensorflow.system.wafer.left_out` prints the table. The start of a run and the rates of transfers
have one run each, so nothing is left to fit them without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cerebras_tensorflow.system.wafer.figures import figures
from cerebras_tensorflow.system.wafer.pipelined import simulate_pipelined
from cerebras_tensorflow.system.wafer.published import JAIS_SAMPLES_PER_S
from cerebras_tensorflow.system.wafer.transformers import BERT_LARGE, GPTJ_6B, JAIS_13B, LLAMA_7B, Transformer
from cerebras_tensorflow.system.wafer.weight_streaming import simulate_weight_streaming


@dataclass(frozen=True)
class _Run:
    """A published speed.

    Attributes:
        name: The run, in words.
        model: Shape of the model.
        batch_size: Samples that one system takes in a step.
        num_csx: Systems; 0: pipelined mode on one.
        samples_per_s: What was published.
    """

    name: str
    model: Transformer
    batch_size: int
    num_csx: int
    samples_per_s: float

    def speed(self, efficiency: float) -> float:
        """Return the simulated samples/s with kernels of an efficiency."""
        network = self.model.network()
        chosen = replace(figures(), pipelined_efficiency=efficiency, streaming_efficiency=efficiency)
        if not self.num_csx:
            return simulate_pipelined(network, self.batch_size, chosen, allow_oversize=False).samples_per_s
        step = simulate_weight_streaming(network, self.batch_size, chosen, False, self.num_csx)
        return step.samples_per_s


_BERT = _Run("BERT-large, pipelined, R1.7.1", BERT_LARGE, 1024, 0, 6370)
_GPTJ_7 = _Run("GPT-J 6B, weight streaming, R1.7.1", GPTJ_6B, 65, 2, 27.53)
_GPTJ_8 = _Run("GPT-J 6B, weight streaming, R1.8.0", GPTJ_6B, 65, 2, 65_000 / 2_960)
_LLAMA = _Run("Llama-7B, weight streaming, R2.1.1", LLAMA_7B, 99, 1, 20.45)
_JAIS = _Run("Jais 13B, weight streaming, 16 CS-2, R1.9 assumed", JAIS_13B, 212, 16, JAIS_SAMPLES_PER_S)

# Each run, and the runs of the same mode and releases, or of the nearest ones, that give the efficiency instead.
_WITHOUT: Sequence[tuple[_Run, Sequence[_Run]]] = (
    (_BERT, (_GPTJ_7, _GPTJ_8)),
    (_GPTJ_7, (_GPTJ_8,)),
    (_GPTJ_8, (_GPTJ_7,)),
    (_JAIS, (_GPTJ_7, _GPTJ_8)),
    (_LLAMA, (_GPTJ_7, _GPTJ_8)),
)


def left_out_ratios() -> dict[str, tuple[str, float]]:
    """Return run -> (the runs that the efficiency is fitted on, the simulated speed over the published one)."""
    return {
        run.name: (" and ".join(other.name for other in others), run.speed(_fitted(others)) / run.samples_per_s)
        for run, others in _WITHOUT
    }


def table() -> str:
    """Return the ratios as a table in Markdown."""
    rows = [f"| {name} | {others} | {ratio:.2f} |" for name, (others, ratio) in left_out_ratios().items()]
    return "\n".join(["| left out | efficiency fitted on | simulated / published |", "|---|---|---|", *rows]) + "\n"


def _fitted(runs: Sequence[_Run]) -> float:
    """Return the efficiency with which the product of the ratios of some runs is 1."""
    low, high = 0.05, 1.0
    for _ in range(30):
        middle = (low * high) ** 0.5
        product = 1.0
        for run in runs:
            product *= run.speed(middle) / run.samples_per_s
        low, high = (middle, high) if product < 1 else (low, middle)
    return low


if __name__ == "__main__":
    print(table(), end="")
