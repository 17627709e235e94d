"""Writing checkpoints in a second thread while training goes on: one at a time, in order, errors not lost."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

logger = logging.getLogger(__name__)

_Snapshot = TypeVar("_Snapshot")


class AsynchronousWriter:
    """Takes a snapshot in the caller's thread and writes it in another. A context manager that waits at its end.

    If SystemExit or KeyboardInterrupt leaves it, the process must stop soon, and the write is cancelled.

    At most one snapshot exists at a time: a save that comes while the one before is being written waits for it. So
    saves never overtake each other, and the memory is that of the training plus one snapshot. The thread is not a
    daemon: a process that ends normally finishes the write first.

    Attributes:
        waited_s: Time that callers spent waiting for earlier writes [s].
        is_cancelled: Whether the write is to end early; its `write` asks now and then, and raises.
    """

    def __init__(self) -> None:
        self.waited_s = 0.0
        self.is_cancelled = False
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def is_writing(self) -> bool:
        """Whether a write is going on."""
        return self._thread is not None and self._thread.is_alive()

    def save(self, snapshot: Callable[[], _Snapshot], write: Callable[[_Snapshot], object]) -> None:
        """Wait for the write before, take a snapshot now, and write it in the second thread.

        Args:
            snapshot: Returns values that training does not change any more (copies).
            write: Writes and commits them. Whatever it raises surfaces at the next call of this object.

        Raises:
            BaseException: What the write before raised; then no snapshot is taken.
        """
        self.wait()
        values = snapshot()
        self._thread = threading.Thread(target=self._run, args=(values, write), name="checkpoint-writer")
        self._thread.start()

    def check(self) -> None:
        """Raise what a finished write raised, without waiting; to be called at every step."""
        if not self.is_writing:
            self.wait()

    def cancel(self) -> None:
        """Ask the current write to end early, because the process must stop soon."""
        self.is_cancelled = True

    def wait(self) -> None:
        """Wait for the write that is going on.

        Raises:
            BaseException: What it raised; once.
        """
        start = time.monotonic()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.waited_s += time.monotonic() - start
        error, self._error = self._error, None
        if error is not None:
            raise error

    def __enter__(self) -> AsynchronousWriter:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(exc, (SystemExit, KeyboardInterrupt)):
            self.cancel()
        try:
            self.wait()
        except BaseException as error:
            if exc is None:
                raise
            # The first error matters more; this one must not hide it.
            logger.error("the checkpoint being written meanwhile failed too: %s", error)

    def _run(self, values: _Snapshot, write: Callable[[_Snapshot], object]) -> None:
        try:
            write(values)
        except BaseException as exc:  # noqa: BLE001 (the next call raises it)
            self._error = exc
