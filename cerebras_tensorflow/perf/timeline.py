"""The timeline of one step, planned or measured: spans in streams, and memory over time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LOAD, COMPUTE, UPDATE, STORE, WIRE = "load", "compute", "update", "store", "wire"
STREAMS = (LOAD, COMPUTE, UPDATE, STORE, WIRE)  # the wire: transfers between several CSX


@dataclass(frozen=True)
class Span:
    """A load, an op, an update, a store or a transfer between CSX, with its begin and end.

    Attributes:
        stream: One of STREAMS.
        name: Name of the weight or op.
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
    """The timeline of one step.

    Attributes:
        title: Name of the step or Program.
        is_measured: Whether a step was measured. Otherwise the timeline is a plan, computed from rates.
        spans: In any order.
        memory: (time [s], bytes in use from then on), by time.
        memory_label: What the bytes count.
    """

    title: str
    is_measured: bool
    spans: tuple[Span, ...]
    memory: tuple[tuple[float, int], ...] = ()
    memory_label: str = "bytes"

    @property
    def label(self) -> str:
        """How traces and pictures mark the timeline."""
        return "measured" if self.is_measured else "planned (from rates; nothing was run)"

    @property
    def end_s(self) -> float:
        """Length of the step [s]."""
        return max((span.end_s for span in self.spans), default=0.0)

    def busy_s(self, streams: Iterable[str]) -> float:
        """Return the time in which at least one of the given streams is busy [s]."""
        wanted = set(streams)
        return covered_s([(span.begin_s, span.end_s) for span in self.spans if span.stream in wanted])

    def overlap(self, streams: Sequence[str] = (LOAD, STORE)) -> float:
        """Return the share of the moves' time that overlaps computation. 1 if there are none."""
        moves = self.busy_s(streams)
        work = self.busy_s((COMPUTE, UPDATE))
        return (moves + work - self.busy_s((*streams, COMPUTE, UPDATE))) / moves if moves else 1.0


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
    """Place overlapping spans in different lanes. Return (lane from 0, span), sorted by begin."""
    ends: list[float] = []
    placed = []
    for span in sorted(spans, key=lambda span: (span.begin_s, -span.end_s)):
        lane = next((number for number, end in enumerate(ends) if end <= span.begin_s), len(ends))
        if lane == len(ends):
            ends.append(0.0)
        ends[lane] = span.end_s
        placed.append((lane, span))
    return placed
