"""How the simulated speed grows with the number of systems, and what keeps it from growing in proportion."""

from __future__ import annotations

from dataclasses import replace

from cerebras_tensorflow.config.env import PIPELINED
from cerebras_tensorflow.system.wafer.layers import Network
from cerebras_tensorflow.system.wafer.simulate import Workload, simulate
from cerebras_tensorflow.system.wafer.simulation import Simulation
from cerebras_tensorflow.units import format_seconds

COUNTS = (1, 2, 4, 8, 16)


def scaling(network: Network, workload: Workload, counts: tuple[int, ...] = COUNTS) -> dict[int, Simulation]:
    """Return the simulated step for several numbers of systems. Each system keeps its batch size.

    Pipelined mode uses one system, so the result is empty.

    Raises:
        PlacementError, SettingsError: As in `simulate`.
    """
    if workload.mode == PIPELINED:
        return {}
    return {count: simulate(network, replace(workload, num_csx=count)) for count in counts}


def counts_up_to(num_csx: int) -> tuple[int, ...]:
    """Return the numbers of systems of a curve that ends at a number.

    >>> counts_up_to(16), counts_up_to(12), counts_up_to(192)
    ((1, 2, 4, 8, 16), (1, 2, 4, 8, 12), (1, 2, 4, 8, 16, 32, 64, 128, 192))
    """
    doubled = [1]
    while doubled[-1] * 2 < num_csx:
        doubled.append(doubled[-1] * 2)
    return (*doubled, num_csx) if num_csx > 1 else (1,)


def efficiency(one: Simulation, many: Simulation) -> float:
    """Return the speed of several systems, as a part of that many times the speed of one."""
    return many.samples_per_s / (many.num_csx * one.samples_per_s) if one.samples_per_s else 0.0


def added_s(one: Simulation, many: Simulation) -> dict[str, float]:
    """Return what several systems add to the step of one, by cause [s], the longest first.

    A pass over the weights waits for the tree that broadcasts them. In training the last of these passes also waits for
    the tree that adds up the gradients; that is the reduction. Each system computes its own batch and reads it over
    its own links, so these two times do not grow.
    """
    tree = sum(placed.time.fill_s for placed in many.layers) - sum(placed.time.fill_s for placed in one.layers)
    is_training = many.received_bytes > 0
    passes = 1 + is_training * (1 + many.is_recomputed)
    causes = {
        "broadcast": tree * (passes - is_training) / passes,
        "reduction": tree * is_training / passes,
        "compute": _sum(many, "compute_s") - _sum(one, "compute_s"),
        "input": _sum(many, "io_s") - _sum(one, "io_s"),
    }
    return dict(sorted(causes.items(), key=lambda item: -item[1]))


def scaling_text(curve: dict[int, Simulation]) -> str:
    """Return a curve as a table, and what limits the largest number of systems."""
    one, *_, most = curve.values()
    causes = added_s(one, most)
    grows = [f"{name} {format_seconds(seconds)}" for name, seconds in causes.items() if seconds > 0]
    stays = [name for name, seconds in causes.items() if seconds <= 0]
    return "\n".join(
        [
            f"Scaling (simulated; each CS-2 has a batch of {one.batch_size})",
            f"{'CS-2':>6}  {'samples/s':>10}  of linear",
            *(f"{n:>6}  {step.samples_per_s:>10.4g}  {efficiency(one, step):>9.1%}" for n, step in curve.items()),
            f"What limits scaling: {', '.join(grows) or 'nothing'}, of a step of {format_seconds(most.step_s)}."
            + (f" Each CS-2 has its own {' and '.join(stays)}: no more time." if stays else ""),
            "",
        ]
    )


def _sum(step: Simulation, part: str) -> float:
    return sum(getattr(placed.time, part) for placed in step.layers)
