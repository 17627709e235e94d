"""The first CSX of an evaluation or a prediction: others compute the next batches while it computes the current one.

Each run of the session takes one batch, or one micro-batch of it. A round is one batch for each CSX, in order. The
first run of a round sends the batches to the others. Each later run takes the values that another CSX has computed, and
feeds them to the ops that update metrics. If a variable that the values depend on changes, the round ends at once.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cerebras_tensorflow.errors import CollectiveError
from cerebras_tensorflow.graph.program import Program
from cerebras_tensorflow.runtime.collectives.interface import Collectives
from cerebras_tensorflow.runtime.csx.checkpoint_files import Source, Sources
from cerebras_tensorflow.runtime.csx.messages import Message, answers, send
from cerebras_tensorflow.runtime.csx.orders import END, EXTEND
from cerebras_tensorflow.runtime.csx.variables import VariableSender
from cerebras_tensorflow.runtime.fetches import FetchedGraph
from cerebras_tensorflow.runtime.inference.frontier import Frontier, Frontiers

BATCH_KIND, NOTHING = "batch", "nothing"  # kinds of messages

Batch = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class InferenceRun:
    """One run of the session.

    Attributes:
        fetched: The tensors and ops of the Program's graph that it fetches.
        graph: The Program's graph.
        takes_batch: Whether it takes a batch from the input.
        is_plain: Whether the caller feeds nothing.
        counters: counters(n) returns feeds of the counters of random ops for the n-th run like this one after it.
        read: Returns the value of a variable.
    """

    fetched: Sequence[Any]
    graph: FetchedGraph
    takes_batch: bool
    is_plain: bool
    counters: Callable[[int], Batch]
    read: Callable[[str], np.ndarray]


class SharedInference:
    """Lets other CSX compute batches.

    Args:
        ranks: The group of all CSX; this one has rank 0.
        program: The Program.
        ahead: ahead(n) returns up to n of the next batches of the input, without taking them from it.
        read_once: Whether this CSX alone reads checkpoints, and sends the values to the others.
    """

    def __init__(
        self,
        ranks: Collectives,
        program: Program,
        ahead: Callable[[int], Sequence[Batch]],
        read_once: bool = True,
    ) -> None:
        self._ranks = ranks
        self._ahead = ahead
        self._frontiers = Frontiers(program)
        self._known: dict[frozenset[str], Frontier] = {}
        self._streamed = frozenset(spec.name for spec in program.streamed)
        self._names = frozenset(spec.name for spec in (*program.resident, *program.streamed))
        self._changed = set(self._names)
        self._sources = Sources(not read_once)
        self._num_extensions = 0
        self._is_round_open = False  # whether the others have answers that were not received
        self._waiting = 0  # number of batches that others compute, of those that the session has not taken
        self._values: deque[Batch] = deque()
        self._counters: deque[Batch] = deque()  # with which others compute the waiting batches
        self._asked: tuple[str, ...] = ()
        self._depends_on: frozenset[str] = frozenset()  # variables that the values of the round depend on
        self._is_stale = False  # whether one of them has changed since
        self._is_closed = False

    def feeds(self, run: InferenceRun) -> Batch:
        """Return values of tensors for a run, which others have computed: tensor name -> value. May be empty."""
        frontier = self._frontier(run)
        values: Batch = {}
        if run.takes_batch and self._is_stale:
            self._drop_round()
        if run.takes_batch and self._waiting:
            values = self._next_values(run, frontier)
        elif run.takes_batch and frontier.tensors and run.is_plain:
            self._begin_round(run, frontier)
        self.variables_changed(frontier.writes & self._names)
        return values if run.is_plain else {}

    def variables_changed(self, names: Iterable[str]) -> None:
        """Note that variables change: what others compute after this has the new values."""
        changed = frozenset(names)
        self._changed |= changed
        for name in changed:
            self._sources.changed(name)
        self._is_stale |= self._waiting > 0 and not changed.isdisjoint(self._depends_on)

    def note_source(self, name: str, source: Source) -> None:
        """Note that a variable has its value from a checkpoint, where the others may read it."""
        self._sources.note(name, source)

    def close(self) -> None:
        """End the others. A second call has no effect."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._is_round_open:
            self._ranks.abort("the run ended")
        else:
            with contextlib.suppress(CollectiveError):  # the run's own error, if any, is already known
                self._send(Message(END))
        self._ranks.close()

    def _receive(self) -> None:
        if self._is_round_open:
            self._values = deque(message.arrays for message in answers(self._ranks)[: self._waiting])
            self._is_round_open = False

    def _drop_round(self) -> None:
        """End the round without the values that others have computed for it."""
        self._receive()
        self._values.clear()
        self._counters.clear()
        self._waiting, self._is_stale = 0, False

    def _next_values(self, run: InferenceRun, frontier: Frontier) -> Batch:
        self._receive()
        self._waiting -= 1
        values = self._values.popleft()
        has_same_numbers = _are_equal(self._counters.popleft(), run.counters(0))
        # With other fetches, or random numbers of another run, this CSX computes the batch.
        return values if frontier.tensors == self._asked and has_same_numbers else {}

    def _begin_round(self, run: InferenceRun, frontier: Frontier) -> None:
        batches = self._ahead(self._ranks.size - 1)
        if not batches:
            return
        self._send_changes(run, frontier)
        values = {"tensors": list(frontier.tensors)}
        self._counters = deque(run.counters(number) for number in range(1, len(batches) + 1))
        arrays = [{**batch, **counters} for batch, counters in zip(batches, self._counters, strict=True)]
        messages = [Message(BATCH_KIND, values, one) for one in arrays]
        nothing = Message(NOTHING)
        send(self._ranks, [nothing, *messages, *[nothing] * (self._ranks.size - 1 - len(messages))])
        self._is_round_open, self._waiting, self._asked = True, len(batches), frontier.tensors
        self._depends_on = frontier.reads | self._streamed

    def _send_changes(self, run: InferenceRun, frontier: Frontier) -> None:
        for extension in run.graph.extensions[self._num_extensions :]:
            graph = np.frombuffer(extension.SerializeToString(), np.uint8)
            self._send(Message(EXTEND, {}, {"graph": graph}))
        self._num_extensions = len(run.graph.extensions)
        sender = VariableSender(self._ranks)
        for name in sorted(self._changed & (frontier.reads | self._streamed)):
            reading = self._sources.message(name)
            if reading is not None:
                self._send(reading)
            else:
                sender.add(name, np.asarray(run.read(name)))
            self._changed.discard(name)
        sender.end()
        ended = self._sources.end()
        if ended is not None:
            self._send(ended)

    def _frontier(self, run: InferenceRun) -> Frontier:
        key = frozenset(one.name for one in run.fetched)
        if key not in self._known:
            found = self._frontiers.of(run.fetched)
            self._known[key] = replace(found, writes=found.writes | run.graph.assigned_weights(run.fetched))
        return self._known[key]

    def _send(self, message: Message) -> None:
        send(self._ranks, [message] * self._ranks.size)


def _are_equal(one: Batch, other: Batch) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(value, other[name]) for name, value in one.items())
