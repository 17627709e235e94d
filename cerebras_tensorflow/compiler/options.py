"""What a user may choose about a weight-streaming schedule."""

from __future__ import annotations

from dataclasses import dataclass

from cerebras_tensorflow.graph.program import Residence


@dataclass(frozen=True)
class StreamingOptions:
    """What a user may choose about the schedule.

    Attributes:
        min_stream_bytes: Variables below this size stay resident: a move costs more than they do.
        window_bytes: Bytes of weights in memory at a time; None: twice the weight at which half of all bytes are in
            smaller ones, at least 64 MB. One weight beyond it (a vocabulary) gets the memory to itself.
        slice_bytes: Most bytes of a variable that an element-wise update has in memory; more where the window is so
            large that this is a small part of it, since every slice costs nodes.
        memory_budget: Most bytes of memory that the process may take; None: no limit, and values are spilled as far as
            that costs next to nothing (budget.py).
        process_bytes: What it takes without the step.
        spill_share: Without a budget, what spilling may add to the bytes that the weights' moves take.
        min_spill_bytes: Values below this size are not spilled: a move costs more than the memory is worth.
        residence: Where the weights lie between their uses.
    """

    min_stream_bytes: int = 64 * 1024
    window_bytes: int | None = None
    slice_bytes: int = 16_000_000
    memory_budget: int | None = None
    process_bytes: int = 0
    spill_share: float = 0.05
    min_spill_bytes: int = 256 * 1024
    residence: Residence = Residence.STORE
