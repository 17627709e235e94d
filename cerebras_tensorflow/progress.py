"""Shows the progress of a long task: one line on a terminal, a line every 30 seconds in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from cerebras_tensorflow.units import format_bytes, format_seconds

_BAR_WIDTH = 24
# Tasks that are shorter show nothing.
_FIRST_S = 2.0
_REDRAW_S = 0.2
_LOG_PERIOD_S = 30.0


class Progress:
    """Counts the work that is done, and shows it with rate and time left; a context manager.

    Tasks of less than two seconds show nothing. On a terminal one line is redrawn, and removed at the end. Any other
    stream gets a line every 30 seconds.

    Args:
        title: Name of the task, such as "Converting".
        total: Amount of the whole task.
        unit: "B" for bytes, or a plural such as "tensors".
        stream: Where to write; stderr by default.
        is_shown: False writes nothing, for --quiet.
        clock: Returns the time [s]; tests replace it.
    """

    def __init__(
        self,
        title: str,
        total: int,
        unit: str = "B",
        stream: TextIO | None = None,
        is_shown: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._title = title
        self._total = total
        self._unit = unit
        self._stream = sys.stderr if stream is None else stream
        self._is_terminal = self._stream is not None and self._stream.isatty()
        self._is_shown = is_shown and self._stream is not None
        self._clock = clock
        self._done = 0
        self._has_line = False
        self._start_s = clock()
        self._next_s = self._start_s + (_FIRST_S if self._is_terminal else _LOG_PERIOD_S)

    def advance(self, amount: int = 1) -> None:
        """Add to the work that is done, and show it if the time for an update has come."""
        self._done += amount
        now_s = self._clock()
        if not self._is_shown or now_s < self._next_s:
            return
        text = self.text(now_s - self._start_s, has_bar=self._is_terminal)
        if self._is_terminal:
            self._next_s = now_s + _REDRAW_S
            self._has_line = True
            self._stream.write(f"\r{text}\x1b[K")
        else:
            self._next_s = now_s + _LOG_PERIOD_S
            self._stream.write(text + "\n")
        self._stream.flush()

    def text(self, wall_s: float, has_bar: bool = True) -> str:
        """Return the line to show.

        >>> progress = Progress("Converting", 4_000_000, is_shown=False)
        >>> progress.advance(1_000_000)
        >>> progress.text(2.0)
        'Converting: [######                  ]  25 %  1.0 MB of 4.0 MB  500.0 kB/s  6.0 s left'
        """
        share = min(self._done / self._total, 1.0) if self._total else 1.0
        rate = self._done / wall_s if wall_s > 0 else 0.0
        left = f"{format_seconds(max(self._total - self._done, 0) / rate)} left" if rate else "time left unknown"
        bar = f"[{'#' * round(share * _BAR_WIDTH):<{_BAR_WIDTH}}] " if has_bar else ""
        return f"{self._title}: {bar}{share * 100:3.0f} %  {self._amounts(rate)}  {left}"

    def close(self) -> None:
        """Remove the line from the terminal."""
        if self._has_line:
            self._has_line = False
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _amounts(self, rate: float) -> str:
        if self._unit == "B":
            return f"{format_bytes(self._done)} of {format_bytes(self._total)}  {format_bytes(rate)}/s"
        return f"{self._done} of {self._total} {self._unit}  {rate:.3g}/s"
