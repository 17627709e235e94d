"""One line on a terminal: how far a copy has come, how fast, how long still."""

from __future__ import annotations

import time
from typing import TextIO

from cerebras_tensorflow.units import format_bytes, format_seconds

_PERIOD_S = 0.2
_BAR_WIDTH = 24


class ProgressLine:
    """Counts bytes; draws only where someone watches.

    Args:
        total: Bytes to come [B].
        stream: Where to draw, if it is a terminal.
        is_shown: False for --quiet.
    """

    def __init__(self, total: int, stream: TextIO, is_shown: bool = True) -> None:
        self._total = total
        self._stream = stream
        self._is_shown = is_shown and stream.isatty()
        self._done = 0
        self._start = self._drawn = time.monotonic()

    def __call__(self, num_bytes: int) -> None:
        self._done += num_bytes
        now = time.monotonic()
        if self._is_shown and now - self._drawn >= _PERIOD_S:
            self._drawn = now
            self._stream.write("\r" + self.text(now - self._start) + "\x1b[K")
            self._stream.flush()

    def text(self, wall_s: float) -> str:
        """Return the line after some time.

        >>> import io
        >>> line = ProgressLine(4_000_000, io.StringIO())
        >>> line(1_000_000)
        >>> line.text(2.0)
        '[######                  ]  25 %  1.0 MB of 4.0 MB  500.0 kB/s  6.0 s left'
        """
        share = self._done / self._total if self._total else 1.0
        rate = self._done / wall_s if wall_s > 0 else 0.0
        left = format_seconds((self._total - self._done) / rate) if rate else "?"
        bar = "#" * round(share * _BAR_WIDTH)
        return (
            f"[{bar:<{_BAR_WIDTH}}] {share * 100:3.0f} %  {format_bytes(self._done)} of {format_bytes(self._total)}"
            f"  {format_bytes(rate)}/s  {left} left"
        )

    def clear(self) -> None:
        """Take the line away."""
        if self._is_shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
