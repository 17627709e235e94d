"""progress: one updated line on a terminal, a plain line every half minute in a log."""

from __future__ import annotations

import io

import pytest

from cerebras_tensorflow.progress import Progress


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class _Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_terminal_shows_one_line_with_rate_and_time_left() -> None:
    clock, terminal = _Clock(), _Terminal()
    with Progress("Converting", 4_000_000, stream=terminal, clock=clock) as progress:
        clock.now_s += 4
        progress.advance(1_000_000)
        progress.advance(0)
        clock.now_s += 4
        progress.advance(1_000_000)
    first, second, last = terminal.getvalue().split("\r")[1:]
    assert first == "Converting: [######                  ]  25 %  1.0 MB of 4.0 MB  250.0 kB/s  12.0 s left\x1b[K"
    assert second == "Converting: [############            ]  50 %  2.0 MB of 4.0 MB  250.0 kB/s  8.0 s left\x1b[K"
    assert last == "\x1b[K"


def test_a_short_task_shows_nothing() -> None:
    clock, terminal = _Clock(), _Terminal()
    with Progress("Converting", 10, "tensors", stream=terminal, clock=clock) as progress:
        clock.now_s += 1.9
        progress.advance(10)
    assert terminal.getvalue() == ""


def test_a_log_gets_a_plain_line_every_half_minute() -> None:
    clock, log = _Clock(), io.StringIO()
    with Progress("Converting", 40, "tensors", stream=log, clock=clock) as progress:
        for _ in range(4):
            clock.now_s += 20
            progress.advance(10)
    assert log.getvalue().splitlines() == [
        "Converting:  50 %  20 of 40 tensors  0.5/s  40.0 s left",
        "Converting: 100 %  40 of 40 tensors  0.5/s  0.0 ms left",
    ]


def test_quiet_shows_nothing() -> None:
    clock, terminal = _Clock(), _Terminal()
    with Progress("Converting", 10, stream=terminal, is_shown=False, clock=clock) as progress:
        clock.now_s += 60
        progress.advance(5)
    assert terminal.getvalue() == ""


def test_an_error_clears_the_progress_line() -> None:
    clock, terminal = _Clock(), _Terminal()
    with pytest.raises(OSError), Progress("Converting", 10, stream=terminal, clock=clock) as progress:
        clock.now_s += 60
        progress.advance(5)
        raise OSError
    assert terminal.getvalue().endswith("\r\x1b[K")
