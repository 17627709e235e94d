"""The figures of the model that are fitted or assumed: their values, and both ends of their ranges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cerebras_tensorflow.errors import SettingsError
from cerebras_tensorflow.system import facts
from cerebras_tensorflow.system.facts import Fact
from cerebras_tensorflow.text import is_number

DEFAULT_RELEASE = "1.8"
"""The last release with TensorFlow, which this project ports."""

End = Literal["value", "slow", "fast"]


@dataclass(frozen=True)
class Figures:
    """The figures with a range.

    Attributes:
        kernel_efficiency: Share of the peak that the kernels reach.
        vector_start_cycles: To start the vector operation of one weight.
        step_overhead_s: Begin and end of a step [s].
        cluster_hop_s: One hop of the way between weights and systems [s].
    """

    kernel_efficiency: float
    vector_start_cycles: float
    step_overhead_s: float
    cluster_hop_s: float


def kernel_efficiency(release: str) -> Fact:
    """Return the efficiency of a release's kernels.

    Args:
        release: Such as "1.8" or "2.1.1".

    Raises:
        SettingsError: If it is not the number of a release from 1.0 to 2.x.
    """
    parts = release.removeprefix("R").split(".")
    if not all(is_number(part) for part in parts) or parts[0] not in ("1", "2"):
        raise SettingsError(f"release is {release!r}; expected one such as 1.7.1, 1.8 or 2.1.1")
    return facts.KERNEL_EFFICIENCY_1 if parts[0] == "1" else facts.KERNEL_EFFICIENCY_2


def figures(release: str = DEFAULT_RELEASE, end: End = "value") -> Figures:
    """Return the figures for a release.

    Args:
        release: Such as "1.8" or "2.1.1".
        end: "value", or the end of every range that makes a step slower ("slow") or faster ("fast").
    """
    return Figures(
        _rate(kernel_efficiency(release), end),
        _cost(facts.VECTOR_START_CYCLES, end),
        _cost(facts.STEP_OVERHEAD_S, end),
        _cost(facts.CLUSTER_HOP_S, end),
    )


def _rate(fact: Fact, end: End) -> float:
    """Return a figure that makes a step faster when it is higher."""
    chosen = {"value": fact.value, "slow": fact.low, "fast": fact.high}[end]
    return fact.value if chosen is None else chosen


def _cost(fact: Fact, end: End) -> float:
    """Return a figure that makes a step slower when it is higher."""
    chosen = {"value": fact.value, "slow": fact.high, "fast": fact.low}[end]
    return fact.value if chosen is None else chosen
