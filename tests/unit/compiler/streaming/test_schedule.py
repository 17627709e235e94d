"""The schedule's rules, over drawn schedules."""

from __future__ import annotations

import itertools

import hypothesis.strategies as st
from hypothesis import given, settings

from cerebras_tensorflow.compiler.streaming.schedule import Demand, find_waits, split_uses
from cerebras_tensorflow.graph.program import Event

EVENTS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 8), st.sampled_from([0, 10, 25, 40])), min_size=1, max_size=25
)


def made(drawn: list[tuple[int, int, int]]) -> list[Event]:
    """Events in order of first use; those of no bytes are gathers."""
    return [
        Event("load" if size else "gather", n, f"move_{n}", size, first, first + span, ((f"end_{n}", first + span),))
        for n, (first, span, size) in enumerate(sorted(drawn))
    ]


@settings(derandomize=True, max_examples=300)
@given(EVENTS, st.sampled_from([1, 30, 50, 100]))
def test_all_waiting_goes_to_an_earlier_position(drawn: list[tuple[int, int, int]], window: int) -> None:
    events = made(drawn)
    position = {node: place for event in events for node, place in event.finishers}
    for event, waits in zip(events, find_waits(events, window)[0], strict=True):
        assert all(position[node] < event.first for node in waits)


@settings(derandomize=True, max_examples=300)
@given(EVENTS, st.sampled_from([1, 30, 50, 100]))
def test_bytes_held_stay_in_the_window_but_for_uses_that_overlap(
    drawn: list[tuple[int, int, int]], window: int
) -> None:
    events = made(drawn)
    waits, most = find_waits(events, window)
    ended: set[str] = set()
    seen = 0
    for number, event in enumerate(events):
        if not event.num_bytes:
            assert not waits[number]
            continue
        ended.update(waits[number])
        begun = [other for other in events[: number + 1] if not {node for node, _ in other.finishers} & ended]
        held = sum(other.num_bytes for other in begun)
        seen = max(seen, held)
        overlapping = sum(other.num_bytes for other in begun if other.last >= event.first)
        assert held <= max(window, overlapping)
    assert most == seen


USES = st.lists(st.integers(0, 50), unique=True, min_size=1, max_size=12).map(sorted)
DEMAND = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 40)), max_size=20).map(sorted)


@settings(derandomize=True, max_examples=300)
@given(USES, DEMAND, st.integers(0, 200))
def test_uses_stay_together_exactly_where_what_moves_between_fits(
    uses: list[int], demand: list[tuple[int, int]], window: int
) -> None:
    groups = split_uses(uses, Demand(demand), window)
    assert [use for group in groups for use in group] == uses
    starts = {group[0] for group in groups[1:]}
    for before, after in itertools.pairwise(uses):
        between = sum(size for place, size in demand if before < place < after)
        assert (after in starts) == (between > window)
