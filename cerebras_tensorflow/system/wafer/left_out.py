"""A test for over-fitting: each published speed, from figures that were fitted without it.

`python -m cerebras_tensorflow.system.wafer.left_out` prints the table. The overhead of a step and the
rates of transfers rest on one run, so nothing is left to fit them without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

from cerebras_tensorflow.system.wafer.figures import figures
from cerebras_tensorflow.system.wafer.pipelined import simulate_pipelined
from cerebras_tensorflow.system.wafer.published import BERT_R2_SAMPLES_PER_S, GPTJ_R2_SAMPLES_PER_S
from cerebras_tensorflow.system.wafer.transformers import BERT_LARGE, GPTJ_6B, LLAMA_7B, Transformer
from cerebras_tensorflow.system.wafer.weight_streaming import simulate_weight_streaming


@dataclass(frozen=True)
class Run:
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
        chosen = replace(figures(), kernel_efficiency=efficiency)
        if not self.num_csx:
            return simulate_pipelined(network, self.batch_size, chosen, allow_oversize=False).samples_per_s
        step = simulate_weight_streaming(network, self.batch_size, chosen, False, self.num_csx)
        return step.samples_per_s


RUNS_1 = (
    Run("BERT-large, pipelined, R1.7.1", BERT_LARGE, 1024, 0, 6370),
    Run("GPT-J 6B, weight streaming, R1.7.1", GPTJ_6B, 65, 2, 27.53),
    Run("GPT-J 6B, weight streaming, R1.8.0", GPTJ_6B, 65, 2, 65_000 / 2_960),
)
RUNS_2 = (
    Run("Llama-7B, weight streaming, R2.1.1", LLAMA_7B, 99, 1, 20.45),
    Run("GPT-J 6B, weight streaming, R2.0.3", GPTJ_6B, 60, 2, GPTJ_R2_SAMPLES_PER_S),
    Run("BERT-large, weight streaming, R2.0.3", BERT_LARGE, 1024, 1, BERT_R2_SAMPLES_PER_S),
)


@cache
def left_out_ratios() -> dict[str, tuple[float, float]]:
    """Return run -> (the efficiency that the other runs of its releases fit, the speed with it over the published)."""
    result = {}
    for runs in (RUNS_1, RUNS_2):
        for run in runs:
            efficiency = fitted_efficiency([other for other in runs if other is not run])
            result[run.name] = (efficiency, run.speed(efficiency) / run.samples_per_s)
    return result


def table() -> str:
    """Return the ratios as a table in Markdown."""
    rows = [f"| {name} | {value:.1%} | {ratio:.2f} |" for name, (value, ratio) in left_out_ratios().items()]
    titles = "| left out | efficiency that the others fit | simulated / published |"
    return "\n".join([titles, "|---|---|---|", *rows]) + "\n"


def fitted_efficiency(runs: Sequence[Run]) -> float:
    """Return the efficiency with which the product of the ratios of some runs is 1."""
    low, high = 0.05, 1.0
    for _ in range(14):  # to 0.02 %
        middle = (low * high) ** 0.5
        product = 1.0
        for run in runs:
            product *= run.speed(middle) / run.samples_per_s
        low, high = (middle, high) if product < 1 else (low, middle)
    return low


if __name__ == "__main__":
    print(table(), end="")
