"""Hardware figures of a CS-2, each with its unit, its source, and whether it is published, derived or assumed.

`published` figures are from Cerebras, `derived` figures follow from published ones, and `assumed` figures are choices
of this simulator. Whatever prints an assumed figure marks it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

WSE2 = "Cerebras WSE-2 figures, AI training workshop at ALCF, May 2024"
HOT_CHIPS_34 = "S. Lie, Cerebras Architecture Deep Dive, Hot Chips 34, 2022"


@dataclass(frozen=True)
class Fact:
    """One hardware figure."""

    value: float
    unit: str
    status: Literal["published", "derived", "assumed"]
    source: str


CORES = Fact(850_000, "cores", "published", WSE2)
CORE_SRAM_BYTES = Fact(48 * 1024, "B", "published", f"48 KB of SRAM for each core: {HOT_CHIPS_34}")
SRAM_BYTES = Fact(40e9, "B", "published", WSE2)
MEMORY_BYTES_PER_S = Fact(20e15, "B/s", "published", WSE2)
FABRIC_BITS_PER_S = Fact(220e15, "bit/s", "published", WSE2)
AREA_MM2 = Fact(46_225, "mm^2", "published", WSE2)
TRANSISTORS = Fact(2.6e12, "transistors", "published", WSE2)
CLOCK_HZ = Fact(
    850e6,
    "Hz",
    "derived",
    'the field "Frequency" of published performance.json files; the core is designed for up to 1.1 GHz (Hot Chips 34)',
)
HALF_PRECISION_MACS_PER_CYCLE = Fact(4, "multiply-adds/core/cycle", "published", f"4-way SIMD, 16 bit: {HOT_CHIPS_34}")
SINGLE_PRECISION_MACS_PER_CYCLE = Fact(1, "multiply-adds/core/cycle", "assumed", "no public figure that we know of")
HALF_PRECISION_FLOPS = Fact(
    CORES.value * CLOCK_HZ.value * HALF_PRECISION_MACS_PER_CYCLE.value * 2,
    "FLOP/s",
    "derived",
    "cores x clock x multiply-adds x 2; the published peak at 1.1 GHz is 7.5e15",
)
SINGLE_PRECISION_FLOPS = Fact(
    CORES.value * CLOCK_HZ.value * SINGLE_PRECISION_MACS_PER_CYCLE.value * 2,
    "FLOP/s",
    "assumed",
    "cores x clock x assumed multiply-adds x 2",
)
HOP_CYCLES = Fact(1, "cycles/hop", "published", WSE2)
IO_BITS_PER_S = Fact(1.2e12, "bit/s", "published", "CS-2 data sheet: 12 x 100 Gigabit Ethernet")
IO_BYTES_PER_S = Fact(IO_BITS_PER_S.value / 8, "B/s", "derived", "line rate without protocol overhead")
REBOOT_WALL_S = Fact(2.0, "s", "assumed", "reboot time of the simulated system; a real one takes minutes")

PORT = 9000
"""TCP port of a CS system. 1.4.0: a cs_ip without a port means :9000."""


def all_facts() -> dict[str, Fact]:
    """Return every figure by its name, in the order of this file."""
    return {name: value for name, value in globals().items() if isinstance(value, Fact)}
