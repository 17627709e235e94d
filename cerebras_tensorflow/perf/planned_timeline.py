"""Simulates the timeline of a schedule at given rates: loads, computation, updates and stores.

Computation and updates share the cores and run one op at a time, in the Program's order. Loads share one stream, stores
share another. A load begins when the window has room, as in the compiled graph (compiler/schedule.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cerebras_tensorflow.graph.program import Event, Program
from cerebras_tensorflow.perf.timeline import COMPUTE, LOAD, STORE, UPDATE, Span, Timeline

_LEAST_SPAN_S = 1e-6
_PIECE = "/cs_rows_"  # in the names of ops that the compiler made from a sliced update


@dataclass(frozen=True)
class StreamRates:
    """Rates of a machine.

    Attributes:
        read_bytes_per_s, write_bytes_per_s: Rates of the weight store [B/s].
        update_bytes_per_s: Rate at which an optimizer reads and writes memory [B/s].
    """

    read_bytes_per_s: float
    write_bytes_per_s: float
    update_bytes_per_s: float


class _Simulation:
    """Walks through the ops of a step in order and records the time of each."""

    def __init__(
        self, program: Program, op_s: Mapping[str, float], rates: StreamRates, live_bytes: Mapping[str, int]
    ) -> None:
        self._program, self._op_s, self._rates, self._live_bytes = program, op_s, rates, live_bytes
        self.spans: list[Span] = []
        self.changes: list[tuple[float, int]] = []  # (time, change of the bytes of weights in memory)
        self.passed_s: list[float] = []  # when each op ended, by the position that events use
        self.live: list[tuple[float, int]] = []  # (time, bytes of values between ops)
        self._cores_s = self._read_s = self._write_s = 0.0
        self._open: list[tuple[Event, float]] = []  # events whose weight is in memory, and when it can be freed
        self._held = 0

    def run(self) -> None:
        events = sorted(self._program.events, key=lambda event: event.first)
        cursor = 0
        for name in self._program.order:
            if _PIECE in name:  # the positions of events do not count these ops
                self._compute(name)
                continue
            while cursor < len(events) and events[cursor].first < len(self.passed_s) + 1:
                self._move(events[cursor])
                cursor += 1
            self._compute(name)
            self.passed_s.append(self._cores_s)
        for event, _ in self._open:
            self.changes.append((self._passed(event), -event.num_bytes))

    def _compute(self, name: str) -> None:
        taken = self._op_s.get(name, 0.0)
        if taken >= _LEAST_SPAN_S:
            self.spans.append(Span(COMPUTE, name, self._cores_s, self._cores_s + taken))
        if name in self._live_bytes:
            self.live.append((self._cores_s, self._live_bytes[name]))
        self._cores_s += taken

    def _passed(self, event: Event) -> float:
        """Return when an event's weight was last used [s]."""
        last = int(event.last)
        return self.passed_s[last] if last < len(self.passed_s) else self._cores_s

    def _move(self, event: Event) -> None:
        room_s = self._make_room(event)
        name = self._program.stored[event.weight].name
        if event.kind == "spill":
            self._open.append((event, self._store(event, name)))
            self._held += event.num_bytes
            return
        begin_s = max(self._read_s, room_s)
        read_bytes = 0 if event.kind == "replace" else event.num_bytes
        self._read_s = begin_s + read_bytes / self._rates.read_bytes_per_s
        if read_bytes:
            self.spans.append(Span(LOAD, name, begin_s, self._read_s, event.num_bytes))
            self.changes.append((begin_s, event.num_bytes))
        self._cores_s = max(self._cores_s, self._read_s)
        free_s = float("inf")
        if event.kind in ("update", "replace"):
            begin_s = self._cores_s
            self._cores_s += 2 * event.num_bytes / self._rates.update_bytes_per_s
            self.spans.append(Span(UPDATE, name, begin_s, self._cores_s, event.num_bytes))
            self._store(event, name)
            free_s = self._cores_s
        self._held += event.num_bytes
        self._open.append((event, free_s))

    def _store(self, event: Event, name: str) -> float:
        """Write an event's weight to the store. Return when the write ends [s]."""
        begin_s = max(self._cores_s, self._write_s)
        self._write_s = begin_s + event.num_bytes / self._rates.write_bytes_per_s
        self.spans.append(Span(STORE, name, begin_s, self._write_s, event.num_bytes))
        return self._write_s

    def _make_room(self, event: Event) -> float:
        """Free unused weights until the event's weight fits. Return when the last one is freed [s]."""
        room_s = 0.0
        kept = []
        for other, free_s in self._open:
            if (
                event.num_bytes
                and self._held + event.num_bytes > self._program.window_bytes
                and (other.last < event.first)
            ):
                gone_s = min(free_s, self._passed(other))
                room_s = max(room_s, gone_s)
                self._held -= other.num_bytes
                self.changes.append((gone_s, -other.num_bytes))
            else:
                kept.append((other, free_s))
        self._open = kept
        return room_s


def plan_timeline(
    program: Program,
    op_s: Mapping[str, float],
    rates: StreamRates,
    title: str,
    live_bytes: Mapping[str, int] | None = None,
) -> Timeline:
    """Return the timeline of a Program.

    Args:
        program: The Program.
        op_s: Time of each op [s]. Ops that are missing take no time.
        rates: Rates of the machine.
        title: Title of the timeline.
        live_bytes: Bytes of values between ops while each op runs. None: the curve shows weights only.
    """
    simulation = _Simulation(program, op_s, rates, live_bytes or {})
    simulation.run()
    changes = [*simulation.changes]
    before = 0
    for at_s, live in simulation.live:
        changes.append((at_s, live - before))
        before = live
    total = sum(spec.num_bytes for spec in program.resident)
    memory = {0.0: total}
    for at_s, change in sorted(changes, key=lambda item: item[0]):
        total += change
        memory[at_s] = total
    what = "weights and values between ops" if live_bytes else "weights in memory"
    return Timeline(title, False, tuple(simulation.spans), tuple(memory.items()), f"{what}, planned [bytes]")
