"""Ctrl-C and SIGTERM: finish the current step, save, and exit with the signal's status (130 or 143)."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from cerebras_tensorflow.logs import run_log


class StopSignals:
    """A context manager: the first SIGINT or SIGTERM asks the run to stop, a second one stops it at once.

    Outside the main thread it does nothing, since Python delivers signals only to the main thread.

    Attributes:
        received: Number of the first signal; None before one arrives.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def exit_if_received(self) -> None:
        """Exit with the signal's status, if one was received.

        Raises:
            SystemExit: With 128 + the signal's number, if one was received.
        """
        if self.received is not None:
            raise SystemExit(128 + self.received)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise SystemExit(128 + number)
        self.received = number
        run_log.info(
            "%s received: finishing the step, saving, then stopping. A second signal stops at once, without saving.",
            signal.Signals(number).name,
        )
