"""Sends the sums of gradients to the CSX that add them, in a background thread, while the micro-batch goes on.

Back-pressure: gradients up to a number of bytes wait; beyond it the micro-batch waits.
Failure: after the first error nothing more is sent; the next call raises it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress

from cerebras_tensorflow.errors import CollectiveError
from cerebras_tensorflow.graph.micro_batches import Gradient
from cerebras_tensorflow.runtime.csx.arrivals import Arrivals
from cerebras_tensorflow.runtime.micro_batches.streamed import Part, SumSender

MAX_QUEUED_BYTES = 64_000_000


class SumStream(SumSender):
    """Sends sums of gradients.

    Args:
        arrivals: Adds what arrives here.
        send: Sends rows to the CSX that adds them; that may be this one.
    """

    def __init__(self, arrivals: Arrivals, send: Callable[[Gradient, Part], None]) -> None:
        self._arrivals = arrivals
        self._send = send
        self._queued: deque[tuple[Gradient, Iterator[Part], int]] = deque()
        self._num_bytes = 0
        self._failure: BaseException | None = None
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def queue(self, gradient: Gradient, parts: Iterator[Part], num_bytes: int) -> None:
        """Queue the sums of a gradient. Wait while too many bytes are queued. A larger one waits for an empty queue."""
        with self._changed:
            self._wait_for(lambda: self._num_bytes == 0 or self._num_bytes + num_bytes <= MAX_QUEUED_BYTES)
            self._queued.append((gradient, parts, num_bytes))
            self._num_bytes += num_bytes
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="cs_sums", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def finish(self) -> None:
        """Wait until all sums are sent, and all totals are here that the update takes."""
        with self._changed:
            self._wait_for(lambda: not self._queued)
        self._arrivals.finish()

    def close(self) -> None:
        """End the thread. What it waits for must have been ended before."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        """Background thread: send what is queued, in order. A gradient leaves the queue when it is sent."""
        with suppress(CollectiveError):  # this side has ended
            while True:
                with self._changed:
                    self._wait_for(lambda: bool(self._queued))
                    gradient, parts, num_bytes = self._queued[0]
                try:
                    for part in parts:
                        self._send(gradient, part)
                except BaseException as error:  # noqa: BLE001 - background thread: keep the error; the next call raises it
                    self._fail(error)
                    return
                del parts
                with self._changed:
                    self._queued.popleft()
                    self._num_bytes -= num_bytes
                    self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failure = error
            self._queued.clear()
            self._changed.notify_all()

    def _wait_for(self, is_done: Callable[[], bool]) -> None:
        """Wait for a condition. The thread ends every wait: by sending, or by its error.

        Raises:
            CollectiveError: If another CSX failed, or this one ends.
            StoreError: If the store failed.
        """
        self._changed.wait_for(lambda: self._failure is not None or self._is_closed or is_done())
        if self._failure is not None:
            raise self._failure
        if self._is_closed:
            raise CollectiveError("this CSX has ended")
