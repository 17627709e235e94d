"""The user's options for weight streaming."""

from __future__ import annotations

from dataclasses import dataclass

from cerebras_tensorflow.graph.program import Residence


@dataclass(frozen=True)
class StreamingOptions:
    """The user's options for the schedule.

    Attributes:
        min_stream_bytes: Variables below this size stay resident: moving them costs more than it saves.
        window_bytes: Bytes of weights in memory at a time. A larger weight (a vocabulary) is loaded alone. None: twice
            the size of the median weight by bytes (half of all bytes are in smaller weights), at least 64 MB.
        slice_bytes: Most bytes of a variable that an element-wise update has in memory. If a 32nd of the window is
            more, slices have that size, since every slice costs nodes.
        memory_budget: Most bytes of memory that the process may take. None: no limit; values are spilled only where
            this costs almost nothing (memory/budget.py).
        process_bytes: Memory of the process without the step, with its batches.
        other_bytes: Memory of the step besides the part to compile: the graph of its other part, and sums of gradients.
        spill_share: Most bytes that spilling may add without a budget, as a share of the bytes that the weights move.
        min_spill_bytes: Values below this size are not spilled: moving them costs more than it saves.
        residence: Where the weights are between their uses.
    """

    min_stream_bytes: int = 64 * 1024
    window_bytes: int | None = None
    slice_bytes: int = 16_000_000
    memory_budget: int | None = None
    process_bytes: int = 0
    other_bytes: int = 0
    spill_share: float = 0.05
    min_spill_bytes: int = 256 * 1024
    residence: Residence = Residence.STORE
