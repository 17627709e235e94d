"""A test for over-fitting: each published speed that fits an efficiency, from an efficiency fitted without it.

`python -m cerebras_tensorflow.system.wafer.left_out` prints the table. The overhead of a step, the start of a run
and the rate of sending rest on one run each, so nothing is left to fit them without it. The rate of saving, which rests
on two, is in no simulated speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from cerebras_tensorflow.config.env import PIPELINED
from cerebras_tensorflow.system.wafer.figures import figures
from cerebras_tensorflow.system.wafer.pipelined import simulate_pipelined
from cerebras_tensorflow.system.wafer.published import RUNS_1, RUNS_2, KernelRun
from cerebras_tensorflow.system.wafer.weight_streaming import simulate_weight_streaming


@cache
def left_out_ratios() -> dict[str, tuple[float, float]]:
    """Return run -> (the efficiency that the other runs of its releases fit, the speed with it over the published)."""
    result = {}
    for runs in (RUNS_1, RUNS_2):
        for run in runs:
            efficiency = fitted_efficiency([other for other in runs if other is not run])
            result[run.name] = (efficiency, _speed(run, efficiency) / run.samples_per_s)
    return result


def table() -> str:
    """Return the ratios as a table in Markdown."""
    rows = [f"| {name} | {value:.1%} | {ratio:.2f} |" for name, (value, ratio) in left_out_ratios().items()]
    titles = "| left out | efficiency that the others fit | simulated / published |"
    return "\n".join([titles, "|---|---|---|", *rows]) + "\n"


def fitted_efficiency(runs: Sequence[KernelRun]) -> float:
    """Return the efficiency with which the product of the ratios of some runs is 1."""
    low, high = 0.05, 1.0
    for _ in range(14):  # to 0.02 %
        middle = (low * high) ** 0.5
        product = 1.0
        for run in runs:
            product *= _speed(run, middle) / run.samples_per_s
        low, high = (middle, high) if product < 1 else (low, middle)
    return low


def _speed(run: KernelRun, efficiency: float) -> float:
    """Return the simulated samples/s with kernels of an efficiency."""
    network, work = run.shape.network(), run.workload
    chosen = replace(figures(work.release), kernel_efficiency=efficiency)
    if work.mode == PIPELINED:
        return simulate_pipelined(network, work.batch_size, chosen, work.allow_oversize).samples_per_s
    step = simulate_weight_streaming(network, work.batch_size, chosen, work.allow_oversize, work.num_csx)
    return step.samples_per_s


if __name__ == "__main__":
    print(table(), end="")
