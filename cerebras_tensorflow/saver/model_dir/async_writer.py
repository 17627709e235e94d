"""Writing checkpoints in a second thread during training: one at a time, in order, without losing errors."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

logger = logging.getLogger(__name__)

_Snapshot = TypeVar("_Snapshot")
# What the second thread adds to its niceness, so that the training's threads get the cores first. Steps beside a save
# were 13 % slower without it; with 5, 10 and 19 the difference was within the spread (a busy machine).
_NICENESS = 10


class AsynchronousWriter:
    """Takes a snapshot in the caller's thread and writes it in another. A context manager that waits at its end.

    On SystemExit or KeyboardInterrupt the process must stop soon, so the context manager cancels the write.

    At most one snapshot exists at a time: a save waits until the previous one is written. So saves stay in order, and
    memory holds at most one snapshot beside the training. The thread is not a daemon: a process that exits normally
    finishes the write first. It and the threads that it starts give way to others on busy cores.

    Attributes:
        waited_s: Time that callers spent waiting for earlier writes [s].
        is_cancelled: Whether the write should end early. The `write` function polls it, and raises.
    """

    def __init__(self) -> None:
        self.waited_s = 0.0
        self.is_cancelled = False
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def is_writing(self) -> bool:
        """Whether a write is in progress."""
        return self._thread is not None and self._thread.is_alive()

    def save(
        self,
        snapshot: Callable[[], _Snapshot],
        write: Callable[[_Snapshot], object],
        discard: Callable[[], object] = lambda: None,
    ) -> None:
        """Wait for the previous write, take a snapshot, and write it in the second thread.

        Args:
            snapshot: Returns copies of the values, which training does not change.
            write: Writes and commits them. If it raises, the next call on this object raises the same.
            discard: Gives the snapshot up if the second thread cannot start.

        Raises:
            BaseException: What the previous write raised; then no snapshot is taken.
            RuntimeError: If the second thread cannot start.
        """
        self.wait()
        values = snapshot()
        thread = threading.Thread(target=self._run, args=(values, write), name="checkpoint-writer")
        try:
            thread.start()
        except RuntimeError:  # the system has no thread left
            discard()
            raise
        self._thread = thread

    def check(self) -> None:
        """Raise what a finished write raised, without waiting. Call it at every step."""
        if not self.is_writing:
            self.wait()

    def cancel(self) -> None:
        """Ask the current write to end early, because the process must stop soon."""
        self.is_cancelled = True

    def wait(self) -> None:
        """Wait for the write in progress.

        Raises:
            BaseException: What the write raised; only the first call raises it.
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
            # Log this error: raising it would hide the first one, which matters more.
            logger.error("writing the checkpoint in the background failed too: %s", error)

    def _run(self, values: _Snapshot, write: Callable[[_Snapshot], object]) -> None:
        give_way()
        try:
            write(values)
        except BaseException as exc:  # noqa: BLE001 (the next call raises it)
            self._error = exc


def give_way() -> None:
    """Let this thread, and the threads that it starts, give way to others on busy cores."""
    with contextlib.suppress(OSError):
        own = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, own, os.getpriority(os.PRIO_PROCESS, own) + _NICENESS)
