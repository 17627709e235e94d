"""Sums that ranks of one machine read in each other's memory have the bits and the counted bytes of the others."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from cerebras_tensorflow.graph.micro_batches import MicroBatches
from cerebras_tensorflow.runtime.collectives import shared_sums, totals
from cerebras_tensorflow.runtime.collectives.in_process import make_group
from cerebras_tensorflow.runtime.collectives.interface import Collectives
from cerebras_tensorflow.runtime.collectives.totals import Totals
from cerebras_tensorflow.runtime.micro_batches.share import Share
from cerebras_tensorflow.runtime.weight_store.shared_memory import SharedMemory, Window

SIZES = (3, 70_001, 1, 64, 0)


def by_all(size: int, call: Callable[[Collectives], object]) -> list[object]:
    results: list[object] = [None] * size

    def one(ranks: Collectives) -> None:
        results[ranks.rank] = call(ranks)

    threads = [threading.Thread(target=one, args=(ranks,)) for ranks in make_group(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.parametrize(("size", "count"), [(2, 2), (2, 6), (3, 7), (5, 11), (8, 8)])
def test_the_bits_and_the_counts_are_those_of_sums_that_travel(
    size: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_sums, "_CHUNK_BYTES", 4096)

    def steps(ranks: Collectives) -> tuple[list[bytes], int, int]:
        share = Share.of(MicroBatches(count, (), (), num_csx=size), ranks.rank)
        across, found = Totals(ranks, share), []
        joined = 0, 0
        for step in range(3):
            own = []
            for number, length in enumerate(SIZES):
                dtype = (np.float32, np.float64)[number % 2]
                values = [
                    (np.random.default_rng((step, number, ranks.rank, group)).normal(size=length) * 10.0**group)
                    for group in range(len(share.groups[ranks.rank]))
                ]
                own.append([value.astype(dtype) for value in values])
                if step == 2:  # as the sums of a run, which are in shared memory
                    places = [across.buffers.take(value.nbytes).view(value.dtype) for value in own[-1]]
                    for place, value in zip(places, own[-1], strict=True):
                        np.copyto(place, value)
                    own[-1] = places
            if step == 1:  # the first one opens the memory of the others
                joined = ranks.bytes_sent, ranks.bytes_received
            found += [total.tobytes() for total in across.dense(own, count)]
        return found, ranks.bytes_sent - joined[0], ranks.bytes_received - joined[1]

    monkeypatch.setattr(totals, "_SHARED_FROM_BYTES", 0)
    shared = by_all(size, steps)
    monkeypatch.setattr(totals, "_SHARED_FROM_BYTES", 1 << 40)
    sent = by_all(size, steps)
    places = 2 * 8 * len(SIZES) * (size - 1) * 3 * 3  # of at most 3 groups, and of the totals
    for one, other in zip(shared, sent, strict=True):
        assert isinstance(one, tuple)
        assert isinstance(other, tuple)
        assert one[0] == other[0] == shared[0][0]  # type: ignore[index]
        assert all(abs(a - b) <= places for a, b in zip(one[1:], other[1:], strict=True))


@pytest.mark.parametrize(("owner", "name"), [(Window, "open"), (SharedMemory, "create")])
def test_ranks_of_which_one_has_no_memory_or_cannot_open_another_send_their_sums(
    owner: type, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(totals, "_SHARED_FROM_BYTES", 0)
    real, failed = getattr(owner, name), threading.Event()

    def fails_once(*values: object, **named: object) -> object:
        if not failed.is_set():
            failed.set()
            return None
        return real(*values, **named)

    monkeypatch.setattr(owner, name, fails_once)

    def mean(ranks: Collectives) -> list[float]:
        across = Totals(ranks, Share.of(MicroBatches(3, (), (), num_csx=3), ranks.rank))
        return across.dense([[np.full(4, ranks.rank, np.float32)]], 3)[0].tolist()

    assert by_all(3, mean) == [[1.0] * 4] * 3
