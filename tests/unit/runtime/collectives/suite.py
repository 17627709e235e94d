"""What every implementation of Collectives does, as functions that each rank of a group calls.

`python -m tests.unit.runtime.collectives.suite NAME` runs one of them in a process that MPI has started.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from cerebras_tensorflow.errors import CollectiveError
from cerebras_tensorflow.runtime.collectives.interface import Collectives, split_evenly
from cerebras_tensorflow.runtime.collectives.sums import reduce_scatter
from cerebras_tensorflow.runtime.micro_batches.tree import absorbed, single, summed

SIZE = 3
JOINED = "MPI has started"
LIMIT_S = 20.0
SHORT_LIMIT_S = 1.0


def exchange(ranks: Collectives) -> None:
    """Each rank gets what each other rank has for it; parts may have any size, also none."""
    for base in (0, 1, 100_000):
        outgoing = [np.full(base * (ranks.rank + 1) * rank, ranks.rank, np.uint8) for rank in range(SIZE)]
        incoming = [np.zeros(base * (rank + 1) * ranks.rank, np.uint8) for rank in range(SIZE)]
        before = ranks.bytes_sent, ranks.bytes_received
        ranks.exchange(outgoing, incoming)
        for rank, part in enumerate(incoming):
            assert (part == rank).all()
        sent = sum(part.nbytes for rank, part in enumerate(outgoing) if rank != ranks.rank)
        received = sum(part.nbytes for rank, part in enumerate(incoming) if rank != ranks.rank)
        assert (ranks.bytes_sent - before[0], ranks.bytes_received - before[1]) == (sent, received)


def broadcast(ranks: Collectives) -> None:
    """Every rank has the bytes of the root; each link carries at most 2 (n-1)/n of them, rounded up."""
    for root in range(SIZE):
        for size in (0, 1, 1_000_001):
            expected = np.random.default_rng(root).integers(0, 256, size, np.uint8)
            data = expected.copy() if ranks.rank == root else np.zeros(size, np.uint8)
            before = ranks.bytes_sent
            ranks.broadcast(data, root)
            assert np.array_equal(data, expected)
            assert ranks.bytes_sent - before <= 2 * (size // SIZE + 1) * (SIZE - 1)


def allgather(ranks: Collectives) -> None:
    """Every rank has the range of each rank."""
    whole = np.zeros(1001, np.float32)
    bounds = split_evenly(whole.size, SIZE)
    ranges = [whole[bounds[rank] : bounds[rank + 1]] for rank in range(SIZE)]
    ranges[ranks.rank][:] = ranks.rank + 1
    ranks.allgather([part.view(np.uint8) for part in ranges])
    for rank, part in enumerate(ranges):
        assert (part == rank + 1).all()


def barrier(ranks: Collectives) -> None:
    """No rank leaves before the last one has come."""
    came = np.array([time.time()])
    for number in range(3):
        if ranks.rank == number:
            came = np.array([time.time()])
        ranks.barrier()
        left = np.array([time.time()])
        times = np.zeros((SIZE, 1))
        ranks.allgather([row.view(np.uint8) if k != ranks.rank else came.view(np.uint8) for k, row in enumerate(times)])
        assert left[0] >= times[number, 0] or ranks.rank == number


def sums_in_a_fixed_order(ranks: Collectives) -> None:
    """The sum over the micro-batches of all ranks has the bits of one rank that adds them all, for any split."""
    for count, splits in ((12, (4, 8)), (7, (1, 5)), (6, (2, 4)), (3, (1, 2))):
        random = np.random.default_rng(count)
        values = [(random.normal(size=101) * 10.0 ** random.integers(-4, 4)).astype(np.float32) for _ in range(count)]
        expected = add(values, absorbed(single(0, count)))[0]
        edges = (0, *splits, count)
        groups = [summed(first, after) for first, after in pairwise(edges)]
        first, after = edges[ranks.rank], edges[ranks.rank + 1]
        own = add(values[first:after], absorbed(single(first, after), is_whole=False))
        bounds = split_evenly(101, SIZE)
        part = reduce_scatter(ranks, own, groups, bounds)
        assert part.tobytes() == expected[bounds[ranks.rank] : bounds[ranks.rank + 1]].tobytes()


def add(values: list[np.ndarray], taken: list[int]) -> list[np.ndarray]:
    """The sums that are left on the stack."""
    stack: list[np.ndarray] = []
    for value, count in zip(values, taken, strict=True):
        for _ in range(count):
            value = stack.pop() + value
        stack.append(value)
    return stack


def wrong_size(ranks: Collectives) -> None:
    """A rank that sends another number of bytes than is expected ends the call on every rank."""
    sizes = [8 if ranks.rank == 0 and rank == 0 else 4 for rank in range(SIZE)]
    incoming = [np.zeros(size, np.uint8) for size in sizes]
    with pytest.raises(CollectiveError, match=r"rank 0 sends 8 B to rank [12], which expects 4 B"):
        ranks.exchange([np.zeros(8 if ranks.rank == 0 else 4, np.uint8)] * SIZE, incoming)


def silent(ranks: Collectives) -> None:
    """A rank that does not come is named within the limit."""
    if ranks.rank != 1:
        with pytest.raises(CollectiveError, match="rank 1 did not answer within 1 s"):
            ranks.barrier()


SHARED: dict[str, Callable[[Collectives], None]] = {
    one.__name__: one for one in (exchange, broadcast, allgather, barrier, sums_in_a_fixed_order)
}
FAILING: dict[str, Callable[[Collectives], None]] = {one.__name__: one for one in (wrong_size, silent)}


def late() -> None:
    """A message that comes after the limit changes no memory, the group stays failed, and a rank leaves alone."""
    from mpi4py import MPI

    from cerebras_tensorflow.runtime.collectives.mpi import join_world

    ranks: Any = join_world(SHORT_LIMIT_S)
    incoming = [np.zeros(8, np.uint8) for _ in range(SIZE)]
    sevens = [np.full(8, 7, np.uint8) for _ in range(SIZE)]
    if ranks.rank == 1:
        MPI.COMM_WORLD.Barrier()
        ranks._transfer(sevens, [np.zeros(8, np.uint8) for _ in range(SIZE)])
    else:
        with pytest.raises(CollectiveError, match="rank 1 did not answer within 1 s"):
            ranks._transfer(sevens, incoming)
        incoming[1][:] = 0
        MPI.COMM_WORLD.Barrier()
    MPI.COMM_WORLD.Barrier()
    assert (incoming[1] == 0).all()
    if ranks.rank == 2:
        ranks.close()
    MPI.COMM_WORLD.Barrier()


def failed_once() -> None:
    """After an error, each call fails at once with the same text; `close` does not wait for the other ranks."""
    from mpi4py import MPI

    from cerebras_tensorflow.runtime.collectives.mpi import join_world

    ranks = join_world(LIMIT_S)
    begin = time.monotonic()
    wrong_size(ranks)
    with pytest.raises(CollectiveError, match="rank 0 sends 8 B to rank 1"):
        ranks.barrier()
    assert time.monotonic() - begin < LIMIT_S / 2
    for rank in range(SIZE):
        if ranks.rank == rank:
            ranks.close()
        MPI.COMM_WORLD.Barrier()


MPI_ONLY: dict[str, Callable[[], None]] = {one.__name__: one for one in (late, failed_once)}


def main(name: str) -> None:
    """Run one function as a rank of MPI, or all that share a group."""
    from cerebras_tensorflow.runtime.collectives.mpi import join_world
    from cerebras_tensorflow.runtime.collectives.process import end_with_parent

    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # MPI ends the other ranks by it when one aborts: without a traceback
    from mpi4py import MPI  # starts MPI

    print(JOINED, MPI.COMM_WORLD.Get_rank(), flush=True)
    if name == "shared":
        ranks = join_world(LIMIT_S)
        assert ranks.size == SIZE
        for check in SHARED.values():
            check(ranks)
        ranks.barrier()
        ranks.close()
    elif name == "abort":
        ranks = join_world(LIMIT_S)
        if ranks.rank == 1:
            ranks.abort("the disk is full")
        ranks.barrier()
        print("not reached")
    elif name in MPI_ONLY:
        MPI_ONLY[name]()
        print("passed", flush=True)
        join_world().abort("the end of the test")
    else:
        FAILING[name](join_world(SHORT_LIMIT_S))
        print("passed", flush=True)
        join_world().abort("the end of the test")


if __name__ == "__main__":
    main(sys.argv[1])
