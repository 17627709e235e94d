"""Hardware figures of a CS-2, each with its unit, its source, and whether it is published, derived, fitted or assumed.

`published` figures are from Cerebras, `derived` figures follow from published ones, `fitted` figures make the model
agree with published runs (system/wafer/published.py), and `assumed` figures are choices of this simulator. Whatever
prints a fitted or an assumed figure marks it. Some have a range, from which a simulated speed gets its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

WSE2 = "Cerebras WSE-2 figures, AI training workshop at ALCF, May 2024"
HOT_CHIPS_34 = "S. Lie, Cerebras Architecture Deep Dive, Hot Chips 34, 2022"


@dataclass(frozen=True)
class Fact:
    """One hardware figure.

    Attributes:
        value, unit, status, source: The figure and where it comes from.
        low, high: The range in which the true figure probably is. None: no range is told.
    """

    value: float
    unit: str
    status: Literal["published", "derived", "fitted", "assumed"]
    source: str
    low: float | None = None
    high: float | None = None


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
GRID_ROWS = Fact(850, "cores", "assumed", "a grid of 850,000 cores; the published outline of the usable grid varies")
GRID_COLUMNS = Fact(1000, "cores", "assumed", "as GRID_ROWS")
WAVELETS_PER_CYCLE = Fact(1, "32-bit wavelets/link/cycle", "published", HOT_CHIPS_34)
SUM_BYTES = Fact(
    4,
    "B/value",
    "derived",
    "a partial sum of products on the fabric: products of half precision are added up in single precision "
    "(K. Rocki et al., SC20, arXiv:2010.03660); that the sums move in it too is our inference",
)
DATA_SHARE = Fact(0.9, "of a core's SRAM", "assumed", "weights and activations; the rest holds code and buffers")

SPARSE_SKIP = Fact(
    1.0,
    "of the multiplications by masked weights",
    "assumed",
    f"cores compute only what data triggers ({HOT_CHIPS_34}); no measured step is published, so this is a bound",
)
SPARSE_WEIGHT_BYTES = Fact(
    2.0, "x the bytes of a value", "assumed", "a 16-bit value and a 16-bit index for each weight in use"
)

KERNEL_EFFICIENCY_1 = Fact(
    0.305,
    "of the peak",
    "fitted",
    "BERT-large pipelined and GPT-J streamed, releases 1.7.1 and 1.8.0: copies and waits inside the kernels of 1.x",
    low=0.25,
    high=0.37,
)
KERNEL_EFFICIENCY_2 = Fact(
    0.540,
    "of the peak",
    "fitted",
    "Llama-7B, GPT-J and BERT-large streamed, releases 2.0.3 and 2.1.1: the kernels of 2.x; the two runs of 2.0.3 are "
    "recalled, not read again",
    low=0.41,
    high=0.62,
)
VECTOR_START_CYCLES = Fact(
    4, "cycles", "assumed", "to start the vector operation of a weight that arrives at a core", low=1, high=8
)
STEP_OVERHEAD_S = Fact(
    0.53e-3,
    "s",
    "fitted",
    "the run of the size of fc_mnist, with batches of 256: begin and end of a step, seen from the hosts",
    low=0.3e-3,
    high=1e-3,
)
CLUSTER_HOP_S = Fact(
    10e-6,
    "s",
    "assumed",
    "one hop between the machines that keep the weights and a system; a level of the tree between systems is another",
    low=2e-6,
    high=50e-6,
)
CLUSTER_FAN_OUT = Fact(4, "links/level", "assumed", "systems or nodes below a node of that tree")
INITIAL_WEIGHT_BYTES_PER_S = Fact(
    188e6, "B/s", "fitted", "GPT-J of release 1.7.1 on 2 systems: initial weights sent in 129 s", low=100e6, high=400e6
)
CHECKPOINT_BYTES_PER_S = Fact(
    275e6,
    "B/s",
    "fitted",
    "GPT-J of releases 1.7.1 and 1.8.0: weights and two slots saved in 230 s and 304 s",
    low=150e6,
    high=500e6,
)
RUN_START_S = Fact(
    2500,
    "s",
    "fitted",
    "1.3 B genomic model, 4.1 h on 2 systems and 2.4 h on 4: the part of a run that more systems do not shorten",
    low=600,
    high=5000,
)
REBOOT_WALL_S = Fact(2.0, "s", "assumed", "reboot time of the simulated system; a real one takes minutes")

PORT = 9000
"""TCP port of a CS system. 1.4.0: a cs_ip without a port means :9000."""


def all_facts() -> dict[str, Fact]:
    """Return every figure by its name, in the order of this file."""
    return {name: value for name, value in globals().items() if isinstance(value, Fact)}
