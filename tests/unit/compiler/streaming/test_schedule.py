"""The schedule's rules, over drawn schedules."""

from __future__ import annotations

import itertools

import hypothesis.strategies as st
from hypothesis import given, settings

from cerebras_tensorflow.compiler.streaming.schedule import Demand, find_waits, held_curve, split_uses
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


def test_a_spilled_value_counts_against_the_window_until_its_first_late_use() -> None:
    fills = [
        Event("fill", number, f"load_{number}", 50, number, 100 + number, ((f"use_{number}", number), ("end", 100)))
        for number in range(1, 5)
    ]
    waits, most = find_waits(fills, 50)
    assert waits == [[], ["use_1"], ["use_2"], ["use_3"]]
    assert most == 50
    assert held_curve(fills, waits, 6).tolist() == [50, 0, 0, 0, 0, 0]


def test_bytes_count_from_the_position_that_a_move_waits_for_to_its_last_use() -> None:
    loads = [
        Event("load", 0, "a", 30, 1, 3, (("x", 1), ("y", 3))),
        Event("load", 1, "b", 30, 4, 5, (("z", 5),)),
        Event("load", 2, "c", 30, 6, 6, (("end", 6),)),
    ]
    waits, most = find_waits(loads, 60)
    assert waits == [[], [], ["x", "y"]]
    assert held_curve(loads, waits, 8).tolist() == [60, 60, 60, 60, 60, 60, 30, 0]
    assert most == 60
