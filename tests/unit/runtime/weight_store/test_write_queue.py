"""Background writes are bounded, keep the order within a lane, and stop after the first failure."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from cerebras_tensorflow.errors import StoreError
from cerebras_tensorflow.graph.program import WeightSpec
from cerebras_tensorflow.runtime.weight_store.buffers import Bytes
from cerebras_tensorflow.runtime.weight_store.failures import FirstFailure
from cerebras_tensorflow.runtime.weight_store.write_queue import WriteQueue

SPECS = tuple(WeightSpec(f"w{index}", "uint8", (100,), 100) for index in range(3))
WAIT_S = 30.0  # reached only if a test fails


class Storage:
    """Records writes; each waits until the gate is released."""

    def __init__(self) -> None:
        self.written: list[tuple[int, int]] = []
        self.begun = threading.Semaphore(0)
        self.gate = threading.Semaphore(0)

    def write(self, index: int, start: int, data: Bytes) -> None:
        self.begun.release()
        assert self.gate.acquire(timeout=WAIT_S)
        self.written.append((index, start))


@contextmanager
def queue_on(storage: Storage, failure: FirstFailure | None = None, max_bytes: int = 1000) -> Iterator[WriteQueue]:
    queue = WriteQueue(SPECS, storage.write, (0, 0, 1), 2, max_bytes, failure or FirstFailure(), "test")
    try:
        yield queue
    finally:
        for _ in range(100):
            storage.gate.release()
        queue.close()


def some(num_bytes: int) -> Bytes:
    return np.zeros(num_bytes, np.uint8)


def test_writes_of_one_lane_keep_their_order_and_lanes_do_not_wait_for_each_other() -> None:
    storage = Storage()
    with queue_on(storage) as queue:
        for start in range(3):
            queue.put(start % 2, start, some(1))
        queue.put(2, 7, some(1))
        for _ in range(2):  # one of each lane has begun, and no more
            assert storage.begun.acquire(timeout=WAIT_S)
        assert not storage.begun.acquire(blocking=False)
        for _ in range(4):
            storage.gate.release()
        queue.wait_for_all()
        assert [write for write in storage.written if write[0] != 2] == [(0, 0), (1, 1), (0, 2)]
        assert (2, 7) in storage.written


def test_a_read_waits_for_the_writes_to_its_bytes_only() -> None:
    storage = Storage()
    with queue_on(storage) as queue:
        queue.put(0, 10, some(10))
        assert not queue.wait_for(0, 0, 10)
        assert not queue.wait_for(0, 20, 100)
        assert not queue.wait_for(1, 0, 100)
        storage.gate.release()
        queue.wait_for(0, 19, 20)
        assert storage.written == [(0, 10)]


def test_put_waits_beyond_the_byte_limit_but_one_large_value_passes() -> None:
    storage = Storage()
    with queue_on(storage, max_bytes=10) as queue:
        queue.put(0, 0, some(50))  # more than the limit, but alone
        second = threading.Thread(target=queue.put, args=(0, 50, some(1)))
        second.start()
        assert storage.begun.acquire(timeout=WAIT_S)
        assert second.is_alive()
        storage.gate.release()
        second.join(WAIT_S)
        assert not second.is_alive()


@pytest.mark.parametrize("error", [StoreError("the disk is full"), MemoryError("no room")])
def test_after_a_failure_nothing_is_written_and_every_use_raises_the_first_error(error: Exception) -> None:
    storage, failure = Storage(), FirstFailure()
    fail = error

    def failing(index: int, start: int, data: Bytes) -> None:
        storage.write(index, start, data)
        raise fail

    storage.gate.release()
    queue = WriteQueue(SPECS, failing, (0, 0, 1), 2, 1000, failure, "test")
    queue.put(0, 0, some(1))
    queue.wait_for_all()
    fail = StoreError("a later error")
    with pytest.raises(StoreError, match=r"the disk is full|a write of w0 .* failed: MemoryError: no room"):
        queue.put(1, 0, some(1))
    with pytest.raises(StoreError, match=r"the disk is full|MemoryError"):
        failure.check()
    queue.close()
    assert storage.written == [(0, 0)]


def test_queued_writes_are_dropped_after_a_failure() -> None:
    storage, failure = Storage(), FirstFailure()
    with queue_on(storage, failure) as queue:
        queue.put(0, 0, some(1))
        queue.put(0, 1, some(1))
        assert storage.begun.acquire(timeout=WAIT_S)
        failure.keep(StoreError("a damaged block"))  # found by a reader
        storage.gate.release()
        queue.wait_for_all()
    assert storage.written == [(0, 0)]


def test_a_closed_queue_refuses_a_value_instead_of_losing_it() -> None:
    queue = WriteQueue(SPECS, Storage().write, (0, 0, 1), 2, 1000, FirstFailure(), "test")
    queue.close()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="after shutdown"):
            queue.put(0, 0, some(1))
    assert not queue.wait_for(0, 0, 100)
