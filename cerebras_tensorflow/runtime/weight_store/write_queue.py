"""Background writes: a step hands over values and goes on, while threads write them in order.

Three rules hold for every store that uses it.
Back-pressure: queued values take a bounded amount of memory.
Order: writes of one lane run one at a time, in the order of their calls.
Failure: after the first error the queue writes nothing more, and the next use of the store raises that error.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from cerebras_tensorflow.errors import StoreError
from cerebras_tensorflow.graph.program import WeightSpec
from cerebras_tensorflow.runtime.weight_store.buffers import Bytes
from cerebras_tensorflow.runtime.weight_store.failures import FirstFailure, unexpected

MAX_PENDING_BYTES = 64_000_000


@dataclass(frozen=True)
class _Write:
    """A queued write: bytes of a weight, from `start` on."""

    index: int
    start: int
    data: Bytes
    done: threading.Event = field(default_factory=threading.Event)

    def touches(self, index: int, start: int, stop: int) -> bool:
        return self.index == index and self.start < stop and start < self.start + self.data.size


class WriteQueue:
    """Writes values to a store's storage in threads of its own.

    Args:
        specs: The weights.
        write: Writes (index of the weight, first byte, bytes) now. If it raises a StoreError, the queue keeps that. It
            wraps any other error in a StoreError that names the weight.
        lanes: The lane of each weight.
        num_threads: Number of lanes that are written at a time.
        max_pending_bytes: Queued bytes beyond which `put` waits. A larger value is accepted when the queue is empty.
        failure: Keeps the first error.
        name: Name of the threads.
    """

    def __init__(
        self,
        specs: Sequence[WeightSpec],
        write: Callable[[int, int, Bytes], object],
        lanes: Sequence[int],
        num_threads: int,
        max_pending_bytes: int,
        failure: FirstFailure,
        name: str,
    ) -> None:
        self._specs = tuple(specs)
        self._write = write
        self._lanes = tuple(lanes)
        self._max_pending_bytes = max_pending_bytes
        self._failure = failure
        self._pending: dict[int, deque[_Write]] = {lane: deque() for lane in self._lanes}
        self._pending_bytes = 0
        self._changed = threading.Condition()
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix=name)

    def put(self, index: int, start: int, data: Bytes) -> None:
        """Queue bytes of a weight, which must not change afterwards. Waits while too many bytes are queued.

        Raises:
            StoreError: If an earlier write has failed.
            RuntimeError: If the queue is closed.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._pending_bytes == 0 or self._pending_bytes + data.size <= self._max_pending_bytes
            )
            self._failure.check()
            pending = self._pending[self._lanes[index]]
            if not pending:
                self._threads.submit(self._drain, pending)  # safe before the append: _drain waits for this lock
            pending.append(_Write(index, start, data))
            self._pending_bytes += data.size

    def wait_for(self, index: int, start: int, stop: int) -> bool:
        """Wait for all queued writes to bytes [start, stop) of a weight. Return whether there were any."""
        with self._changed:
            pending = self._pending[self._lanes[index]]
            writes = [write for write in pending if write.touches(index, start, stop)]
        for write in writes:
            write.done.wait()
        return bool(writes)

    def wait_for_all(self) -> None:
        """Wait for all queued writes."""
        with self._changed:
            writes = [write for pending in self._pending.values() for write in pending]
        for write in writes:
            write.done.wait()

    def close(self) -> None:
        """Wait for all writes and end the threads."""
        self._threads.shutdown(wait=True)

    def _drain(self, pending: deque[_Write]) -> None:
        """Write everything that is queued in one lane, in order."""
        while True:
            with self._changed:
                write = pending[0]
            self._write_one(write)
            with self._changed:
                pending.popleft()
                self._pending_bytes -= write.data.size
                write.done.set()
                self._changed.notify_all()
                if not pending:
                    return  # the next `put` starts a new _drain

    def _write_one(self, write: _Write) -> None:
        if self._failure.has_happened:
            return
        try:
            self._write(write.index, write.start, write.data)
        except StoreError as error:
            self._failure.keep(error)
        except BaseException as error:  # noqa: BLE001 - background thread: keep the error; the next call raises it
            self._failure.keep(unexpected(self._specs[write.index], error))
