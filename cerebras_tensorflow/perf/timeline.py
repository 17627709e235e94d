"""What happens when in one step: spans in streams and memory over time, planned or measured alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LOAD, COMPUTE, UPDATE, STORE = "load", "compute", "update", "store"
STREAMS = (LOAD, COMPUTE, UPDATE, STORE)


@dataclass(frozen=True)
class Span:
    """Something that takes a while.

    Attributes:
        stream: One of STREAMS.
        name: Of the weight or of the op.
        begin_s, end_s: From the beginning of the step [s].
        num_bytes: Bytes moved; 0 in the compute stream.
    """

    stream: str
    name: str
    begin_s: float
    end_s: float
    num_bytes: int = 0


@dataclass(frozen=True)
class Timeline:
    """One step.

    Attributes:
        title: What it is of.
        is_measured: Whether it was measured; otherwise it is planned: made from rates, nothing was run.
        spans: In any order.
        memory: (time [s], bytes) from which on that many are in use, ascending.
        memory_label: What the bytes are.
    """

    title: str
    is_measured: bool
    spans: tuple[Span, ...]
    memory: tuple[tuple[float, int], ...] = ()
    memory_label: str = "bytes"

    @property
    def label(self) -> str:
        """How every picture of it is marked."""
        return "measured" if self.is_measured else "planned (from rates; nothing was run)"

    @property
    def end_s(self) -> float:
        """Length of the step [s]."""
        return max((span.end_s for span in self.spans), default=0.0)

    def busy_s(self, streams: Iterable[str]) -> float:
        """Return the time in which at least one span of the given streams is going on [s]."""
        wanted = set(streams)
        return covered_s([(span.begin_s, span.end_s) for span in self.spans if span.stream in wanted])

    def overlap(self) -> float:
        """Return the share of the time of moves during which something is computed as well; 1 without moves."""
        moves = self.busy_s((LOAD, STORE))
        work = self.busy_s((COMPUTE, UPDATE))
        return (moves + work - self.busy_s(STREAMS)) / moves if moves else 1.0


def covered_s(intervals: Sequence[tuple[float, float]]) -> float:
    """Return the length of a union of intervals.

    >>> covered_s([(0, 2), (1, 3), (5, 6)])
    4.0
    """
    total, end = 0.0, float("-inf")
    for start, stop in sorted(intervals):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def lanes(spans: Sequence[Span]) -> list[tuple[int, Span]]:
    """Give spans that overlap lanes of their own: (lane from 0, span), by their begin."""
    ends: list[float] = []
    placed = []
    for span in sorted(spans, key=lambda span: (span.begin_s, -span.end_s)):
        lane = next((number for number, end in enumerate(ends) if end <= span.begin_s), len(ends))
        if lane == len(ends):
            ends.append(0.0)
        ends[lane] = span.end_s
        placed.append((lane, span))
    return placed
