"""What a CSX computes in a step: its micro-batches, the values to return, and the counters of random ops.

On one CSX the session decides that alone. On several, the first CSX decides it for all (`FirstCsx`), and each other one
gets it in a message (`OtherCsx`).
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cerebras_tensorflow.errors import CollectiveError
from cerebras_tensorflow.graph.micro_batches import TOTAL, MicroBatches
from cerebras_tensorflow.graph.nodes import GraphDef
from cerebras_tensorflow.graph.program import Program
from cerebras_tensorflow.runtime.collectives.interface import Collectives
from cerebras_tensorflow.runtime.collectives.totals import Totals
from cerebras_tensorflow.runtime.csx.checkpoint_files import OwnersRead, Source, Sources
from cerebras_tensorflow.runtime.csx.copy_shares import CopyShares
from cerebras_tensorflow.runtime.csx.messages import FIRST, Message, send
from cerebras_tensorflow.runtime.csx.shared_store import SharedStore
from cerebras_tensorflow.runtime.csx.variables import VariableSender
from cerebras_tensorflow.runtime.csx.wire import plan_wire
from cerebras_tensorflow.runtime.micro_batches.share import Across, Share
from cerebras_tensorflow.runtime.micro_batches.steps import Wanted
from cerebras_tensorflow.runtime.session_snapshot import Elsewhere

STEP, EXTEND, END = "step", "extend", "end"  # kinds of messages
_FEED = "feed"  # scope of the arrays that the caller feeds; those of micro-batches have their number
_FETCHED = "fetched/"  # key of a value that only the caller on the first CSX takes

Parts = Sequence[Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class Order:
    """What this CSX computes in a step.

    Attributes:
        wanted: Values of the micro-batches to return.
        parts: Its micro-batches.
        feeds: What the caller feeds.
        counters: The step, the micro-step and the entropy, for random ops.
    """

    wanted: Mapping[Any, Wanted]
    parts: Parts
    feeds: Mapping[Any, Any]
    counters: tuple[int, int, int]


class Orders:
    """Gives a CSX its orders. This class is for a run on one CSX, which computes whole steps.

    Attributes:
        share: The micro-batches that this CSX computes.
        across: Adds the sums of the other CSX; None: there are no others.
        batches_per_step: Batches of the input in a step. Each has the same number of micro-batches.
    """

    def __init__(self, share: Share, across: Across | None = None, batches_per_step: int = 1) -> None:
        self.share = share
        self.across = across
        self.batches_per_step = batches_per_step

    def of_step(self, order: Order) -> Order:
        """Return this CSX's part of a step.

        Args:
            order: What the session would compute, with all micro-batches of the step.
        """
        return order

    def before_step(self, extensions: Sequence[GraphDef], read: Callable[[str], np.ndarray]) -> None:
        """Tell other CSX what has changed since the last step.

        Args:
            extensions: Everything that was added to the Program's graph.
            read: Returns the value of a variable.
        """

    def variables_changed(self, names: Iterable[str]) -> None:
        """Note that variables were set outside of a step."""

    def run_ended(self, is_step: bool, may_write: bool) -> None:
        """Note the end of a run.

        Args:
            is_step: Whether it was a training step.
            may_write: Whether it may have changed variables in a way that is not part of the step.
        """

    def note_source(self, name: str, source: Source) -> None:
        """Note that a variable has its value from a checkpoint, where the others may read it."""

    def owners_read(self) -> OwnersRead:
        """Return what sets the weights that other CSX own from a checkpoint."""
        return OwnersRead()

    def copies_elsewhere(self, names: Container[str]) -> Elsewhere:  # noqa: ARG002 (overrides use it)
        """Have other CSX copy some of these variables for a checkpoint; return which."""
        return Elsewhere()

    def copied_elsewhere(self, is_kept: bool) -> frozenset[str]:  # noqa: ARG002 (overrides use it)
        """Return the variables that other CSX copy for a checkpoint.

        Args:
            is_kept: Only if they keep memory for the copies already.
        """
        return frozenset()

    def close(self) -> None:
        """End the other CSX."""


class FirstCsx(Orders):
    """The first CSX, which tells the others what to do.

    Args:
        ranks: The group of all CSX; this one has rank 0.
        program: The Program, which has a step in micro-batches.
        batches_per_step: Batches of the input in a step.
        store: The store whose weights the CSX share; None: each CSX holds all weights.
        read_once: Whether this CSX alone reads checkpoints, and sends the values to the others.
        shares: Has the others copy and write variables that all CSX hold; None: this one does.

    Attributes:
        planned_wire_bytes: What `wire_bytes` should be, from the Program.
    """

    def __init__(
        self,
        ranks: Collectives,
        program: Program,
        batches_per_step: int,
        store: SharedStore | None = None,
        read_once: bool = True,
        shares: CopyShares | None = None,
    ) -> None:
        assert program.micro_batches is not None
        share = Share.of(program.micro_batches, FIRST)
        super().__init__(share, Totals(ranks, share) if ranks.size > 1 else None, batches_per_step)
        self._ranks = ranks
        self._store = store
        self._shares = shares
        self._specs = program.variables
        self._read_once = read_once
        self._sources = Sources(not read_once)
        on_every = [spec for index, spec in enumerate(program.streamed) if program.is_on_every_csx(index)]
        self._variables = [s.name for s in (*program.resident, *on_every) if not s.name.startswith(TOTAL)]
        self._changed = set(self._variables)
        self.planned_wire_bytes = plan_wire(program, FIRST)
        self._num_extensions = 0
        self._is_in_step = False
        self._steps = 0
        self._sent = self._received = 0  # bytes of the sums of all steps
        self._before = (0, 0)
        self._weights_before: tuple[int, int] | None = None  # bytes of weights before the first step

    @property
    def store(self) -> SharedStore | None:
        """The store whose weights the CSX share; None: each CSX holds all weights."""
        return self._store

    @property
    def num_csx(self) -> int:
        """Number of CSX."""
        return self._ranks.size

    @property
    def wire_bytes(self) -> tuple[float, float]:
        """Bytes that this CSX sends and receives in a step, for gradients and for weights, on average."""
        steps = max(1, self._steps)
        sent, received = self._wire_bytes_of_weights()
        return (self._sent + sent) / steps, (self._received + received) / steps

    def of_step(self, order: Order) -> Order:
        """Tell the others to compute their parts of a step; return this CSX's part."""
        bounds = self.share.bounds
        names = {key: key if isinstance(key, str) else f"{_FETCHED}{key.name}" for key in order.wanted}
        means = {names[key]: [one.tensor, one.is_fetched] for key, one in order.wanted.items() if one.is_mean}
        values = {"means": means, "counters": list(order.counters)}
        fed = {f"{_FEED}/{_name(key)}": np.asarray(value) for key, value in order.feeds.items()}
        messages = [
            Message(STEP, values, fed | _numbered(order.parts[first:after]))
            for first, after in itertools.pairwise(bounds)
        ]
        self._is_in_step = True
        if self._store is not None and self._weights_before is None:
            self._weights_before = self._store.wire_bytes
        send(self._ranks, messages)
        self._before = (self._ranks.bytes_sent, self._ranks.bytes_received)
        return Order(order.wanted, order.parts[: self.share.size], order.feeds, order.counters)

    def before_step(self, extensions: Sequence[GraphDef], read: Callable[[str], np.ndarray]) -> None:
        """Send new ops, and the variables that have changed outside of a step.

        A weight that has one owner is at its owner already.
        """
        for extension in extensions[self._num_extensions :]:
            graph = np.frombuffer(extension.SerializeToString(), np.uint8)
            self._send(Message(EXTEND, {}, {"graph": graph}))
        self._num_extensions = len(extensions)
        sender = VariableSender(self._ranks)
        for name in self._variables:
            if name not in self._changed:
                continue
            reading = self._sources.message(name)
            if reading is not None:
                self._send(reading)
            else:
                sender.add(name, np.asarray(read(name)))
        sender.end()
        self._changed.clear()
        ended = self._sources.end()
        if ended is not None:
            self._send(ended)

    def variables_changed(self, names: Iterable[str]) -> None:
        """Note that variables were set outside of a step."""
        for name in names:
            self._changed.add(name)
            self._sources.changed(name)

    def note_source(self, name: str, source: Source) -> None:
        """Note that a variable has its value from a checkpoint, where the others may read it."""
        self._sources.note(name, source)

    def owners_read(self) -> OwnersRead:
        """Return what sets the weights that other CSX own from a checkpoint."""
        if self._store is None:
            return OwnersRead()
        read = None if self._read_once else self._store.read_by_owner
        return OwnersRead(self._store.owner_elsewhere, read, self._store.end_reading)

    def copies_elsewhere(self, names: Container[str]) -> Elsewhere:
        """Have other CSX copy their shares of these variables; not those that they do not have yet.

        In a step that has not ended, one of the others may hang: then they copy nothing.

        Raises:
            StoreError: If one of them has no room for its copies.
        """
        if self._shares is None or self._is_in_step:
            return Elsewhere()
        return self._shares.copy([one for one in self._specs if one.name in names and one.name not in self._changed])

    def copied_elsewhere(self, is_kept: bool) -> frozenset[str]:
        """Return the variables that other CSX copy for a checkpoint, as `Orders.copied_elsewhere`."""
        if self._shares is None or self._is_in_step or (is_kept and not self._shares.has_copied):
            return frozenset()
        others = frozenset(itertools.chain.from_iterable(self._shares.of_others(self._specs)))
        return others - self._changed  # they do not have these values yet

    def run_ended(self, is_step: bool, may_write: bool) -> None:
        """Note the end of a run. After a write outside of a step, the next step sends all variables."""
        if is_step:
            self._is_in_step = False
            self._steps += 1
            self._sent += self._ranks.bytes_sent - self._before[0]
            self._received += self._ranks.bytes_received - self._before[1]
        if may_write:
            self.variables_changed(self._variables)

    def close(self) -> None:
        """End the others: orderly between two steps, else at once."""
        if self._store is not None and not self._is_in_step:
            self._store.wait_for_snapshot()
        if self._shares is not None and not self._is_in_step:
            self._shares.wait()
        if self._is_in_step:
            self._ranks.abort("the step failed on the first CSX")
        else:
            with contextlib.suppress(CollectiveError):  # the run's own error, if any, is already known
                self._send(Message(END))
        self._ranks.close()

    def _wire_bytes_of_weights(self) -> tuple[int, int]:
        if self._store is None or self._weights_before is None:
            return 0, 0
        sent, received = self._store.wire_bytes
        return sent - self._weights_before[0], received - self._weights_before[1]

    def _send(self, message: Message) -> None:
        send(self._ranks, [message] * self._ranks.size)


class OtherCsx(Orders):
    """A CSX other than the first one. `use` gives it the message of the next step.

    Args:
        ranks: The group of all CSX.
        plan: The micro-batches of a step.
    """

    def __init__(self, ranks: Collectives, plan: MicroBatches) -> None:
        share = Share.of(plan, ranks.rank)
        super().__init__(share, Totals(ranks, share))
        self._message = Message(STEP)

    def use(self, message: Message) -> None:
        """Take the message of the next step."""
        self._message = message

    def of_step(self, order: Order) -> Order:
        """Return this CSX's part of the step, from the message.

        Raises:
            CollectiveError: If the update here takes a value that the first CSX does not send.
        """
        values, arrays = self._message.values, self._message.arrays
        wanted = {name: Wanted(tensor, True, fetched) for name, (tensor, fetched) in values["means"].items()}
        missing = sorted(str(key) for key in order.wanted if key not in wanted)
        if missing:
            raise CollectiveError(f"the update takes {missing[0]}, which is no mean over the micro-batches")
        parts: list[dict[str, np.ndarray]] = [{} for _ in range(self.share.size)]
        feeds: dict[str, np.ndarray] = {}
        for name, value in arrays.items():
            kind, _, rest = name.partition("/")
            if kind == _FEED:
                feeds[rest] = value
            else:
                parts[int(kind)][rest] = value
        step, micro_step, entropy = values["counters"]
        return Order(wanted, parts, feeds, (step, micro_step, entropy))


def _numbered(parts: Parts) -> dict[str, np.ndarray]:
    return {f"{number}/{name}": np.asarray(value) for number, part in enumerate(parts) for name, value in part.items()}


def _name(key: Any) -> str:
    return key if isinstance(key, str) else str(key.name)
