"""What a user may choose about a weight-streaming schedule."""

from __future__ import annotations

from dataclasses import dataclass

from cerebras_tensorflow.graph.program import Residence


@dataclass(frozen=True)
class StreamingOptions:
    """What a user may choose about the schedule.

    Attributes:
        min_stream_bytes: Variables below this size stay resident: moving them costs more than it saves.
        window_bytes: Bytes of weights in memory at a time. None: twice the size of the median weight by bytes (half of
            all bytes are in smaller weights), at least 64 MB. A single larger weight (a vocabulary) is loaded alone.
        slice_bytes: Most bytes of a variable that an element-wise update has in memory. A 32nd of the window if that is
            more, since every slice costs nodes.
        memory_budget: Most bytes of memory that the process may take. None: no limit, and values are spilled only as
            far as this costs almost nothing (memory/budget.py).
        process_bytes: Memory of the process without the step.
        spill_share: Without a budget, bytes that spilling may add, as a share of the bytes that the weights move.
        min_spill_bytes: Values below this size are not spilled: moving them costs more than it saves.
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
