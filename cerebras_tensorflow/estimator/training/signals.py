"""Ctrl-C and SIGTERM: finish the current step, save, and exit with the signal's status (130 or 143).

Python runs a signal's handler in the main thread, and not before TensorFlow returns from the current step, which may
hang. So another thread reads the signals from a pipe, to which Python writes each one at once.
"""

from __future__ import annotations

import _thread
import os
import signal
import threading
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.runtime.host import stopping

SIGNALS = (signal.SIGINT, signal.SIGTERM)
END_LIMIT_S = 10.0
"""How long the main thread may take after a second signal to end its step and to clean up [s]."""

_END = 0  # not the number of a signal

_active: list[StopSignals] = []


class StopSignals:
    """A context manager: the first SIGINT or SIGTERM asks the run to stop, a second one stops it at once.

    Outside the main thread it does nothing, since Python delivers signals only to the main thread.

    Attributes:
        received: Number of the first signal; None before one arrives.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}
        self._is_second = self._has_raised = False
        self._left = threading.Event()
        self._reader: threading.Thread | None = None
        self._pipe = (-1, -1)

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is not threading.main_thread():
            return self
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)
        earlier = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        if earlier != -1:  # an event loop of the caller reads the signals; the handler counts them
            signal.set_wakeup_fd(earlier)
        else:
            self._reader = threading.Thread(target=self._read, name="cs_signals", daemon=True)
            self._reader.start()
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._handle)
        _active.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._before:
            return
        _active.remove(self)
        self._left.set()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._reader is not None:
            signal.set_wakeup_fd(-1)
            os.write(self._pipe[1], bytes([_END]))
            self._reader.join()
        for end in self._pipe:
            os.close(end)
        stopping.requested.clear()

    def exit_if_received(self) -> None:
        """Exit with the signal's status, if one was received.

        Raises:
            SystemExit: With 128 + the signal's number, if one was received.
        """
        if self.received is not None:
            raise SystemExit(128 + self.received)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        """Runs in the main thread, between two steps or during the run's Python code."""
        if self._reader is None:
            self._count(number)
        if self._is_second and not self._has_raised:
            self._has_raised = True  # a third one would interrupt the clean-up
            raise SystemExit(128 + number)

    def _read(self) -> None:
        """Background thread: count each signal when it arrives."""
        while True:
            for number in os.read(self._pipe[0], 64):
                if number == _END:
                    return
                if number not in SIGNALS or self._is_second:
                    continue
                self._count(number)
                if self._is_second:
                    threading.Thread(target=self._end, args=(number,), name="cs_end", daemon=True).start()
                    _thread.interrupt_main(number)  # runs `_handle`, which may have run before the signal was counted

    def _count(self, number: int) -> None:
        if self.received is not None:
            self._is_second = True
            return
        self.received = number
        stopping.requested.set()
        run_log.info(
            "%s received: finishing the step, saving, then stopping. A second signal stops at once, without saving.",
            signal.Signals(number).name,
        )

    def _end(self, number: int) -> None:
        """Background thread: end the process if the main thread does not, since it waits for a step that hangs."""
        if not self._left.wait(END_LIMIT_S):
            run_log.error(
                "The run did not end within %g s of the second signal: the process ends without cleaning up.",
                END_LIMIT_S,
            )
            os._exit(128 + number)

    def forget(self) -> None:
        """Restore the caller's handlers in a child that was forked: its signals are not for this run."""
        with suppress(ValueError):
            if self._reader is not None:
                signal.set_wakeup_fd(-1)  # the pipe is the parent's
            for number, handler in self._before.items():
                signal.signal(number, handler)
        self._before = {}
        stopping.requested.clear()


def _after_fork() -> None:
    while _active:
        _active.pop().forget()


os.register_at_fork(after_in_child=_after_fork)
