"""progress: a line on a terminal, and nothing elsewhere."""

from __future__ import annotations

import io
import os
import time

from cerebras_tensorflow.saver.progress import ProgressLine


def test_a_terminal_sees_bytes_rate_and_what_is_left_and_then_an_empty_line() -> None:
    reading, writing = os.openpty()
    with open(writing, "w", closefd=True) as terminal:
        line = ProgressLine(4_000_000, terminal)
        line(1_000_000)
        until = time.monotonic() + 0.25
        while time.monotonic() < until:
            line(0)
        line(1_000_000)
        line.clear()
        shown = ""
        while not shown.endswith("\r\x1b[K"):
            shown += os.read(reading, 10_000).decode()
    os.close(reading)
    assert "1.0 MB of 4.0 MB" in shown or "2.0 MB of 4.0 MB" in shown
    assert "B/s" in shown and shown.endswith(" left\x1b[K\r\x1b[K")


def test_a_file_or_a_quiet_user_sees_nothing() -> None:
    text = io.StringIO()
    line = ProgressLine(10, text)
    line(10)
    line.clear()
    assert text.getvalue() == ""
