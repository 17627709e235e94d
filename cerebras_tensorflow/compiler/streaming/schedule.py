"""The schedule of a weight-streaming step: which moves wait for which, to bound the bytes in memory.

Every op of the step has a position in one total order (graph.nodes.order_nodes). A move has the position of its first
use. It may start when all earlier moves have been used, except for the last `window_bytes` of them. So moves run ahead
of the computation by at most that many bytes. A move waits only for ops at earlier positions, so it cannot deadlock.

The backward pass needs no rule of its own. Updates are in the same sequence, so a layer's backward load waits for the
updates of the layers that the backward pass has finished.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from cerebras_tensorflow.graph.program import Event

_UPDATES = frozenset({"update", "replace"})
_AFTER = 1e-9
"""From the place of a slice of an update to the place at which its bytes are free. Slices are further apart."""


class Demand:
    """Bytes of weights that the step uses, by position.

    Args:
        entries: (position, bytes) of each use.
    """

    def __init__(self, entries: Iterable[tuple[int, int]]) -> None:
        ordered = sorted(entries)
        self._positions = [position for position, _ in ordered]
        self._sums = [0, *accumulate(num_bytes for _, num_bytes in ordered)]

    def between(self, first: int, last: int) -> int:
        """Return the bytes of the uses after one position and before another."""
        return self._sums[bisect_left(self._positions, last)] - self._sums[bisect_right(self._positions, first)]


def split_uses(uses: Sequence[int], demand: Demand, window_bytes: int) -> list[list[int]]:
    """Cut the uses of one weight into groups. Each group has one load.

    Two neighbouring uses share a load if the other weights that move between them fit into the window: then the weight
    can stay in memory without delaying these moves. So a deep layer's weight is loaded once for the forward pass and
    once for the backward pass. The last layer's weight is loaded once for both.

    Args:
        uses: Positions, ascending.
        demand: Uses of all weights.
        window_bytes: Bytes of weights in memory at a time.

    Returns:
        The groups, in order.

    >>> split_uses([1, 9], Demand([(4, 100)]), window_bytes=50)
    [[1], [9]]
    >>> split_uses([1, 9], Demand([(4, 100)]), window_bytes=200)
    [[1, 9]]
    """
    groups: list[list[int]] = []
    for use in uses:
        if groups and demand.between(groups[-1][-1], use) <= window_bytes:
            groups[-1].append(use)
        else:
            groups.append([use])
    return groups


def _held_until(event: Event) -> tuple[float, list[str]]:
    """Return the position until which an event's bytes count against the window, and the ops at that position.

    A spilled value counts only until its first late use. From then on it is one of the values between ops, which the
    memory plan counts. If it counted until its last use, other moves could not wait for it, and would load too early.
    """
    if event.kind == "fill" and event.finishers:
        node, position = event.finishers[0]
        return position, [node]
    return event.last, [node for node, _ in event.finishers]


def find_waits(events: Sequence[Event], window_bytes: int) -> tuple[list[list[str]], int]:
    """Return what each event waits for, in addition to the waits of earlier events, and the most bytes held at a time.

    Args:
        events: In order of first use.
        window_bytes: Bytes of weights in memory at a time. A larger weight is in memory alone.

    Returns:
        The ops that each event waits for, and the most bytes that events hold at a time. An event without bytes (a
        gather) waits for nothing.
    """
    waits: list[list[str]] = []
    open_events: list[Event] = []
    most = 0
    for event in events:
        held = sum(other.num_bytes for other in open_events)
        needed: list[str] = []
        still_open: list[Event] = []
        for other in open_events:
            last, nodes = _held_until(other)
            if event.num_bytes and held + event.num_bytes > window_bytes and last < event.first:
                needed.extend(nodes)
                held -= other.num_bytes
            else:
                still_open.append(other)
        open_events = [*still_open, event]
        most = max(most, held + event.num_bytes)
        waits.append(list(dict.fromkeys(needed)))
    return waits, most


def held_curve(events: Sequence[Event], waits: Sequence[Sequence[str]], length: int) -> NDArray[np.int64]:
    """Return the most bytes that moves can hold while each op of the order runs: shape (length,), int64.

    A move can start as soon as the ops have run that it, or an earlier move, waits for. It holds its bytes until its
    last use. A spilled value holds them only until its first late use. From then on it is one of the values between
    ops.

    Args:
        events: In order of first use.
        waits: What each event waits for, from find_waits.
        length: Number of ops in the step's order.
    """
    # A move that waits for an op starts after it. The slices of an update have places between its op and the next op.
    free_from = {
        node: position + _AFTER if event.kind in _UPDATES else int(position) + 1
        for event in events
        for node, position in event.finishers
    }
    places: list[float] = []
    changes: list[int] = []
    reached = 0.0
    for event, nodes in zip(events, waits, strict=True):
        reached = max([reached, *(free_from[node] for node in nodes)])
        end = event.first if event.kind == "fill" else event.last + _AFTER if event.kind in _UPDATES else event.last + 1
        if end > reached:
            places += [reached, end]
            changes += [event.num_bytes, -event.num_bytes]
    return _most_at_each_op(np.array(places), np.array(changes, np.int64), length)


def _most_at_each_op(places: NDArray[np.float64], changes: NDArray[np.int64], length: int) -> NDArray[np.int64]:
    """Return the most bytes from each position of the order to the next: shape (length,), int64.

    Args:
        places: Where bytes are taken or freed: shape (changes,), float64.
        changes: The bytes; freed ones are negative: shape (changes,), int64.
        length: Number of ops in the step's order.
    """
    order = np.lexsort((changes, places))  # what is freed at a place makes room for what is taken there
    places, held = places[order], np.cumsum(changes[order])
    before = np.concatenate([np.zeros(1, np.int64), held])
    curve = before[np.searchsorted(places, np.arange(length), side="right")]
    within = places > np.floor(places)
    np.maximum.at(curve, places[within].astype(np.int64), held[within])
    return curve
