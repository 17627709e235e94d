"""The ops that TensorFlow's profiler recorded: those of sessions, each with its function's call."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

_OP = re.compile(r"([^:]+):(\w+)")  # name:type; a name has no colon
_SESSION, _EXECUTOR, _FUNCTION = "SessionRun", "ExecutorState::Process", "FunctionRun"
_BEGIN = "profile_start_time"
_START, _DONE = "ExecutorState::ProcessAsync::Start", "ExecutorState::ProcessAsync::Done"


@dataclass(frozen=True)
class RecordedOp:
    """An op that ran.

    Attributes:
        name: Its name, in the graph or in a function.
        kind: Its type.
        call: The op of the graph that called the function; None of an op in the graph.
        begin_s, end_s: From the epoch [s].
    """

    name: str
    kind: str
    call: str | None
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class _Event:
    name: str
    begin_s: float
    end_s: float
    stats: dict[str, Any]


class _Reader:
    """Reads the events of threads: an executor's event holds its ops, and an op's event the calls of functions.

    An executor has the number of its run: of a session, or of a function. Input pipelines have others.
    """

    def __init__(self) -> None:
        self.sessions: set[int] = set()
        self._callers: dict[int, tuple[int, str]] = {}  # run of a function -> run that called it, name of the op
        self._ops: list[tuple[int, str, str, float, float]] = []
        self._starts: dict[tuple[int, str], list[tuple[float, str]]] = defaultdict(list)  # asynchronous: end elsewhere
        self._ends: dict[tuple[int, str], list[float]] = defaultdict(list)

    def read(self, events: Iterable[_Event]) -> None:
        """Read the events of a thread."""
        around: list[tuple[float, int, str]] = []  # end, run and op of the events that hold the next one
        for event in sorted(events, key=lambda event: (event.begin_s, -event.end_s)):
            while around and around[-1][0] <= event.begin_s:
                around.pop()
            run, op = around[-1][1:] if around else (0, "")
            if event.name == _SESSION:
                self.sessions.add(event.stats.get("id", 0))
            elif event.name == _EXECUTOR:
                around.append((event.end_s, event.stats.get("id", 0), ""))
            elif event.name == _FUNCTION and run:
                self._callers[event.stats.get("id", 0)] = (run, op)
            elif event.name in (_START, _DONE):
                key = (event.stats.get("step_id", 0), str(event.stats.get("name", "")))
                if event.name == _DONE:
                    self._ends[key].append(event.begin_s)
                else:
                    self._starts[key].append((event.begin_s, str(event.stats.get("kernel_type", ""))))
                    around.append((event.end_s, *key))
            elif run and (found := _OP.fullmatch(event.name)):
                around.append((event.end_s, run, found[1]))
                self._ops.append((run, found[1], found[2], event.begin_s, event.end_s))

    def ops(self) -> Iterator[RecordedOp]:
        """Yield the ops of sessions. A call of a function is no op: the function's ops are."""
        calling = set(self._callers.values())
        for key in self._starts.keys() - calling:
            for (begin_s, kind), end_s in zip(sorted(self._starts[key]), sorted(self._ends[key]), strict=False):
                self._ops.append((*key, kind, begin_s, end_s))
        for run, name, kind, begin_s, end_s in self._ops:
            call, top = None, run
            while top in self._callers:
                top, call = self._callers[top]
            if top in self.sessions and (run, name) not in calling:
                yield RecordedOp(name, kind, call, begin_s, end_s)


def recorded_ops(space: Any, begin_ns: int) -> list[RecordedOp]:
    """Return the ops of sessions, by their begin.

    Args:
        space: XSpace of TensorFlow's profiler.
        begin_ns: When it began, for TensorFlow releases that do not write it [ns since the epoch].
    """
    reader = _Reader()
    for plane in space.planes:
        keys = _stat_names(plane)
        begin_ns = next((stat.uint64_value for stat in plane.stats if keys.get(stat.metadata_id) == _BEGIN), begin_ns)
    for plane in space.planes:
        for line in plane.lines:
            reader.read(_events(plane, line, begin_ns))
    return sorted(reader.ops(), key=lambda op: op.begin_s)


def _stat_names(plane: Any) -> dict[int, str]:
    return {number: metadata.name for number, metadata in plane.stat_metadata.items()}


def _events(plane: Any, line: Any, begin_ns: int) -> Iterator[_Event]:
    names = {number: metadata.name for number, metadata in plane.event_metadata.items()}
    keys = _stat_names(plane)
    known = (_SESSION, _EXECUTOR, _FUNCTION, _START, _DONE)
    for event in line.events:
        name = names.get(event.metadata_id, "")
        if name not in known and not _OP.fullmatch(name):
            continue
        begin_s = (begin_ns + line.timestamp_ns) / 1e9 + event.offset_ps / 1e12
        stats = {keys.get(stat.metadata_id, ""): _value(stat, keys) for stat in event.stats}
        yield _Event(name, begin_s, begin_s + event.duration_ps / 1e12, stats)


def _value(stat: Any, keys: dict[int, str]) -> Any:
    kind = stat.WhichOneof("value")
    if kind == "ref_value":
        return keys.get(stat.ref_value, "")
    return getattr(stat, kind) if kind else None
