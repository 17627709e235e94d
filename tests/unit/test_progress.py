"""progress: one updated line on a terminal, a plain line every half minute in a log, frames for a launcher."""

from __future__ import annotations

import io
import os
import re
import sys
from pathlib import Path

import pytest

from cerebras_tensorflow.config import env
from cerebras_tensorflow.progress import Progress, TerminalLine


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def screen(self) -> list[str]:
        """The lines that a user sees: a carriage return goes back to the start of a line, ESC [K erases its rest."""
        lines, column = [""], 0
        for part in re.findall(r"\x1b\[K|.", self.getvalue(), re.DOTALL):
            if part == "\n":
                lines.append("")
            elif part == "\x1b[K":
                lines[-1] = lines[-1][:column]
            elif part != "\r":
                lines[-1] = lines[-1][:column] + part + lines[-1][column + 1 :]
            column = 0 if part in "\r\n" else column + (len(part) == 1)
        return lines


class _Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_terminal_shows_one_line_with_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    clock, terminal = _Clock(), _Terminal()
    with Progress("Converting", 4_000_000, stream=terminal, clock=clock) as progress:
        for _ in range(2):
            clock.now_s += 4
            progress.advance(1_000_000)
            progress.refresh()
            progress.refresh()
    first, second, last = terminal.getvalue().split("\r")[1:]
    assert first == "Converting: [####            ]  25 %  1.0 MB of 4.0 MB  250.0 kB/s  12.0 s left\x1b[K"
    assert second == "Converting: [########         ]  50 %  2.0 MB of 4.0 MB  250.0 kB/s  8.0 s left\x1b[K"
    assert last == "\x1b[K"


def test_a_short_task_shows_nothing() -> None:
    clock, terminal = _Clock(), _Terminal()
    with Progress("Converting", 10, "tensors", stream=terminal, clock=clock) as progress:
        clock.now_s += 1.9
        progress.advance(10)
        progress.refresh()
    assert terminal.getvalue() == ""


def test_a_log_gets_a_plain_line_every_half_minute() -> None:
    clock, log = _Clock(), io.StringIO()
    with Progress("Converting", 40, "tensors", stream=log, clock=clock) as progress:
        for _ in range(4):
            clock.now_s += 20
            progress.advance(10)
            progress.refresh()
    assert log.getvalue().splitlines() == [
        "Converting:  50 %  20 of 40 tensors  0.5/s  40.0 s left",
        "Converting: 100 %  40 of 40 tensors  0.5/s  0.0 ms left",
    ]


def test_work_of_unknown_length_shows_the_time_so_far() -> None:
    clock, terminal = _Clock(), _Terminal()
    with Progress("First step", stream=terminal, clock=clock) as progress:
        clock.now_s += 90
        progress.refresh()
        assert terminal.screen() == ["First step: 1 min 30 s so far"]
    with Progress("Training", None, "steps", stream=terminal, done=lambda: 7, clock=clock) as progress:
        clock.now_s += 3
        progress.refresh()
        assert terminal.screen() == ["Training: 7 steps  3.0 s so far"]


def test_a_thread_refreshes_the_line_during_a_blocking_call() -> None:
    class Seen(_Terminal):
        def write(self, text: str) -> int:
            if "Waiting" in text:
                progress._has_ended.set()  # the thread has shown it once: that is enough
            return super().write(text)

    terminal = Seen()
    progress = Progress("Waiting", stream=terminal, clock=iter(range(0, 1000, 3)).__next__)
    with progress:
        assert progress._has_ended.wait(60)
    assert "Waiting: " in terminal.getvalue()


def test_quiet_shows_nothing() -> None:
    clock, terminal = _Clock(), _Terminal()
    with Progress("Converting", 10, stream=terminal, is_shown=False, clock=clock) as progress:
        clock.now_s += 60
        progress.refresh()
    assert terminal.getvalue() == ""


def test_an_error_clears_the_progress_line() -> None:
    clock, terminal = _Clock(), _Terminal()
    with pytest.raises(OSError), Progress("Converting", 10, stream=terminal, clock=clock) as progress:
        clock.now_s += 60
        progress.refresh()
        raise OSError
    assert terminal.screen() == [""]


def test_nested_tasks_show_the_inner_one() -> None:
    clock, terminal = _Clock(), _Terminal()
    with Progress("Training", stream=terminal, clock=clock) as outer:
        clock.now_s += 5
        outer.refresh()
        with Progress("Saving", stream=terminal, clock=clock) as inner:
            clock.now_s += 5
            outer.refresh()
            inner.refresh()
            assert terminal.screen() == ["Saving: 5.0 s so far"]
        outer.refresh()
        assert terminal.screen() == ["Training: 10.0 s so far"]


def test_output_of_the_program_appears_above_the_progress_line(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, terminal = _Clock(), _Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    with Progress("Training", clock=clock) as progress:
        clock.now_s += 5
        progress.refresh()
        print("a line of the program")
        clock.now_s += 1
        progress.refresh()
        assert terminal.screen() == ["a line of the program", "Training: 6.0 s so far"]
        print("a prompt: ", end="")
        clock.now_s += 1
        progress.refresh()
        assert terminal.screen() == ["a line of the program", "a prompt: "]
    assert not hasattr(terminal.write, "own")  # the guard is gone
    print("yes")
    assert terminal.screen() == ["a line of the program", "a prompt: yes", ""]


def test_lines_may_end_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    first, second = TerminalLine(terminal), TerminalLine(terminal)
    first.show("Training")
    second.show("Saving")
    first.close()
    second.show("Saving")
    print("a line of the program")
    assert terminal.screen() == ["a line of the program", ""]
    second.close()
    assert not hasattr(terminal.write, "own")  # no guard is left


def test_a_long_text_is_cut_to_the_width_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    terminal = _Terminal()
    TerminalLine(terminal).show("x" * 50)
    assert terminal.screen() == ["x" * 19]


@pytest.mark.parametrize("is_redirected", [False, True])
def test_a_launcher_with_a_terminal_gets_frames_and_a_file_gets_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_redirected: bool
) -> None:
    clock, (reader, writer) = _Clock(), os.pipe()
    monkeypatch.setenv("CSRUN_PROGRESS", env.progress_through(writer, "79"))
    log = tmp_path / "err.log"
    log.touch()
    with open(reader) as received, open(writer, "w") as pipe, log.open("w") as file:
        monkeypatch.setattr(sys, "stderr", file if is_redirected else pipe)
        with Progress("Training", clock=clock) as progress:
            clock.now_s += 5
            progress.refresh()
        pipe.close()
        frames = received.read()
    expected = "\x1b_cs-progress:Training: 5.0 s so far\x1b\\\n\x1b_cs-progress:\x1b\\\n"
    assert (frames, log.read_text()) == (("", "") if is_redirected else (expected, ""))


class _Full(_Terminal):
    def write(self, text: str) -> int:
        raise OSError(28, "No space left on device")


def _closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [_Full(), _closed()], ids=["full", "closed"])
def test_a_stream_that_cannot_be_written_does_not_end_the_task(stream: io.StringIO) -> None:
    clock = _Clock()
    with Progress("Converting", 10, stream=stream, clock=clock) as progress:
        for _ in range(3):
            clock.now_s += 60
            progress.advance(1)
            progress.refresh()
