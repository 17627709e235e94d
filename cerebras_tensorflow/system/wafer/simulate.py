"""The entry to the model: a network, a mode, a batch and a number of systems give a simulated step with a range."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cerebras_tensorflow.config.env import PIPELINED
from cerebras_tensorflow.errors import SettingsError
from cerebras_tensorflow.system import facts
from cerebras_tensorflow.system.facts import Fact
from cerebras_tensorflow.system.wafer.figures import DEFAULT_RELEASE, End, figures, kernel_efficiency
from cerebras_tensorflow.system.wafer.layers import Network
from cerebras_tensorflow.system.wafer.pipelined import simulate_pipelined
from cerebras_tensorflow.system.wafer.simulation import Simulation
from cerebras_tensorflow.system.wafer.weight_streaming import simulate_weight_streaming


@dataclass(frozen=True)
class Workload:
    """What a run asks of the systems.

    Attributes:
        mode: "pipelined" or "weight_streaming".
        batch_size: Samples that one system takes in a step, as in releases 1.7 and 1.8.
        num_csx: Systems.
        micro_batch_size: Samples that a system computes at a time. None: chosen by the model.
        release: Release of the software whose kernels count.
        allow_oversize: Whether to go on without a placement if the network does not fit on the wafer.
    """

    mode: str
    batch_size: int
    num_csx: int = 1
    micro_batch_size: int | None = None
    release: str = DEFAULT_RELEASE
    allow_oversize: bool = False


def simulate(network: Network, workload: Workload) -> Simulation:
    """Return the simulated step, with the range of its time.

    Raises:
        PlacementError: If the network does not fit on the wafer.
        SettingsError: If pipelined mode is asked of several systems, or the release is unknown.
    """
    kernel_efficiency(workload.release)  # raises for an unknown release; pipelined mode takes no figure from it
    if workload.mode == PIPELINED and workload.num_csx > 1:
        raise SettingsError(f"num_csx is {workload.num_csx}: pipelined mode uses one system; use weight streaming")
    middle = _simulate(network, workload, "value")
    # The ends of the range must not be refused where the value is not.
    lenient = replace(workload, allow_oversize=True)
    return replace(
        middle,
        sample_bytes=network.sample_bytes,
        unknown_loops=network.unknown_loops,
        slow_step_s=_simulate(network, lenient, "slow").step_s,
        fast_step_s=_simulate(network, lenient, "fast").step_s,
        assumptions=_assumptions(workload),
    )


def _simulate(network: Network, workload: Workload, end: End) -> Simulation:
    chosen = figures(_kernel_release(workload), end)
    if workload.mode == PIPELINED:
        return simulate_pipelined(network, workload.batch_size, chosen, workload.allow_oversize)
    return simulate_weight_streaming(
        network, workload.batch_size, chosen, workload.allow_oversize, workload.num_csx, workload.micro_batch_size
    )


def _kernel_release(workload: Workload) -> str:
    """Return the release whose kernels count. Releases 2.x have no pipelined mode, so there it is one of 1.x."""
    return DEFAULT_RELEASE if workload.mode == PIPELINED else workload.release


def _assumptions(workload: Workload) -> tuple[str, ...]:
    peak = facts.HALF_PRECISION_FLOPS
    is_pipelined = workload.mode == PIPELINED
    efficiency = kernel_efficiency(_kernel_release(workload))
    parts = [
        f"compute: {efficiency.value:.0%} ({_told(efficiency)}) of {peak.value:.3g} FLOP/s ({peak.status})",
        f"links: {facts.IO_BYTES_PER_S.value:.3g} B/s ({facts.IO_BYTES_PER_S.status})",
        f"begin and end of a step: {facts.STEP_OVERHEAD_S.value:.2g} s ({_told(facts.STEP_OVERHEAD_S)})",
    ]
    if not is_pipelined:
        start = facts.VECTOR_START_CYCLES
        parts.append(f"start of a weight's vector operation: {start.value:g} cycles ({_told(start)})")
        hop = facts.CLUSTER_HOP_S
        parts.append(f"a hop of weights or gradients through the network: {hop.value:g} s ({_told(hop)})")
    return tuple(parts)


def _told(fact: Fact) -> str:
    return f"{fact.status}, {fact.low:g} to {fact.high:g}"
