"""Shows the progress of a long task: one line on a terminal, a line every 30 seconds in a log.

| standard error | what a task shows |
|---|---|
| a terminal | one line, redrawn in place, below all other output |
| a launcher's pipe, and the launcher has a terminal | the same line: we send it as a frame, and the launcher draws it |
| anything else | a line every 30 seconds |
"""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, ClassVar, TextIO, TypeAlias, TypeGuard

from cerebras_tensorflow.config import env
from cerebras_tensorflow.units import format_bytes, format_seconds

_MIN_BAR_WIDTH, _MAX_BAR_WIDTH = 5, 24
# Shorter tasks show nothing.
_FIRST_S = 2.0
_REDRAW_S = 0.2
_LOG_PERIOD_S = 30.0
_ERASE = "\r\x1b[K"

# A progress line on its way to the launcher: an escape sequence that terminals ignore, on a line of its own.
FRAME_START = b"\x1b_cs-progress:"
FRAME_END = b"\x1b\\\n"
FRAME = re.compile(re.escape(FRAME_START) + rb"([^\x1b\n]*)" + re.escape(FRAME_END))


class TerminalLine:
    """A line at the bottom of a terminal. Other output of this process goes above it.

    For output of other processes, the caller must call `make_room` first.

    Args:
        stream: The terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.RLock()
        self._text = ""
        self._is_at_start = True  # whether the cursor is at the start of a line; never draw into other output
        self._guards = contextlib.ExitStack()
        self._has_guards = False

    def show(self, text: str) -> None:
        """Draw a text in place of the last one."""
        with self._lock:
            if not self._has_guards:
                self._guard()
            if self._is_at_start:
                self._text = text[: columns()]  # a wrapped line could not be erased
                self._draw(f"\r{self._text}\x1b[K")

    def make_room(self, last: str) -> None:
        """Erase the line before other output, which ends in `last`."""
        with self._lock:
            if self._text:
                self._text = ""
                self._draw(_ERASE)
            self._is_at_start = last.endswith(("\n", _ERASE)) if last else self._is_at_start

    @contextlib.contextmanager
    def above(self, text: str) -> Iterator[None]:
        """Make room for a text, and draw nothing while the block writes it."""
        with self._lock:
            self.make_room(text)
            yield

    def close(self) -> None:
        """Erase the line, and let streams write directly again."""
        with self._lock:
            self.make_room("")
            self._guards.close()
            self._has_guards = False

    def _guard(self) -> None:
        """Make sys.stdout and sys.stderr call `make_room` before they write, also for log handlers that hold them."""
        self._has_guards = True
        for stream in {id(stream): stream for stream in (sys.stdout, sys.stderr, self._stream)}.values():
            if _is_open(stream) and stream.isatty():
                self._guards.enter_context(_guarded(stream, self))

    def _draw(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # a closed terminal must not end a task
            _own_write(self._stream)(text)
            self._stream.flush()


class _Guard:
    """Replaces a stream's write method: each line that is shown makes room first. Lines may end in any order.

    Attributes:
        own: The stream's own write method.
        lines: The lines that are shown, oldest first.
    """

    def __init__(self, own: Callable[[str], int]) -> None:
        self.own = own
        self.lines: tuple[TerminalLine, ...] = ()

    def __call__(self, text: str) -> int:
        with contextlib.ExitStack() as above:
            for line in self.lines:
                above.enter_context(line.above(text))
            return int(self.own(text))


_guards_lock = threading.Lock()


@contextlib.contextmanager
def _guarded(stream: Any, line: TerminalLine) -> Iterator[None]:
    with _guards_lock:
        guard = stream.write
        if not isinstance(guard, _Guard):
            guard = stream.write = _Guard(guard)
        guard.lines = (*guard.lines, line)
    try:
        yield
    finally:
        with _guards_lock:
            guard.lines = tuple(other for other in guard.lines if other is not line)
            if not guard.lines and stream.write is guard:
                stream.write = guard.own


def _own_write(stream: Any) -> Callable[[str], int]:
    """Return the write method of a stream, without the guard of TerminalLine."""
    write: Callable[[str], int] = stream.write
    return write.own if isinstance(write, _Guard) else write


def columns() -> int:
    """Return the greatest width of a progress line: one less than the terminal's, which may wrap a full line."""
    return max(shutil.get_terminal_size().columns - 1, 1)


class Progress:
    """Counts finished work, and shows it with rate and time left while its `with` block runs.

    Tasks shorter than two seconds (30 in a log) show nothing. A thread redraws the line, so it stays current during a
    long piece of work. Of nested blocks, only the innermost is shown.

    Args:
        title: Name of the task, such as "Converting".
        total: Amount of work of the whole task, or a function that returns the amount known so far. None or 0: unknown;
            then the line shows the time so far.
        unit: "B" for bytes, or a plural such as "tensors".
        stream: Where to write; stderr by default.
        is_shown: False writes nothing, for --quiet.
        done: Returns the amount of finished work [unit]. None: the sum of all calls of `advance`.
        clock: Returns the time [s]; tests replace it.
    """

    _running: ClassVar[list[Progress]] = []

    def __init__(
        self,
        title: str,
        total: int | Callable[[], int] | None = None,
        unit: str = "B",
        stream: TextIO | None = None,
        is_shown: bool = True,
        done: Callable[[], int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._title = title
        self._total = total if callable(total) else lambda: total or 0
        self._unit = unit
        stream = sys.stderr if stream is None else stream
        self._display = _display(stream) if is_shown and _is_open(stream) else None
        self._done = done
        self._advanced = 0
        self._clock = clock
        self._start_s = clock()
        self._next_s = self._start_s + (self._display.first_s if self._display else 0)
        self._has_ended = threading.Event()
        self._count_lock = threading.Lock()
        self._show_lock = threading.Lock()

    def advance(self, amount: int = 1) -> None:
        """Add to the finished work."""
        with self._count_lock:
            self._advanced += amount

    def refresh(self) -> None:
        """Show the progress if an update is due."""
        now_s = self._clock()
        with self._show_lock:
            if self._display is None or now_s < self._next_s or Progress._running[-1:] != [self]:
                return
            self._next_s = now_s + self._display.period_s
            self._display.show(self.text(now_s - self._start_s, self._display.columns))

    def text(self, wall_s: float, columns: int) -> str:
        """Return the line to show, with a bar if there is room for one.

        >>> progress = Progress("Converting", 4_000_000, is_shown=False)
        >>> progress.advance(1_000_000)
        >>> progress.text(2.0, 80)
        'Converting: [####              ]  25 %  1.0 MB of 4.0 MB  500.0 kB/s  6.0 s left'
        >>> progress.text(2.0, 0)
        'Converting:  25 %  1.0 MB of 4.0 MB  500.0 kB/s  6.0 s left'
        >>> Progress("Compiling", is_shown=False).text(75.0, 80)
        'Compiling: 1 min 15 s so far'
        """
        done, total = self._done() if self._done is not None else self._advanced, self._total()
        if not total:
            amount = f"{done} {self._unit}  " if done and self._unit != "B" else ""
            return f"{self._title}: {amount}{format_seconds(wall_s)} so far"
        done = min(done, total)
        share = done / total
        rate = done / wall_s if wall_s > 0 else 0.0
        left = f"{format_seconds((total - done) / rate)} left" if rate else "time left unknown"
        numbers = f"{share * 100:3.0f} %  {self._amounts(done, total, rate)}  {left}"
        width = min(columns - len(f"{self._title}: [] {numbers}"), _MAX_BAR_WIDTH)
        bar = f"[{'#' * round(share * width):<{width}}] " if width >= _MIN_BAR_WIDTH else ""
        return f"{self._title}: {bar}{numbers}"

    def __enter__(self) -> Progress:
        Progress._running.append(self)
        if self._display is not None:
            threading.Thread(target=self._refresh_until_the_end, name="progress", daemon=True).start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._has_ended.set()
        with self._show_lock:
            Progress._running.remove(self)
            if self._display is not None:
                self._display.close()

    def _refresh_until_the_end(self) -> None:
        while not self._has_ended.wait(max(self._next_s - self._clock(), _REDRAW_S)):
            self.refresh()

    def _amounts(self, done: int, total: int, rate: float) -> str:
        if self._unit == "B":
            return f"{format_bytes(done)} of {format_bytes(total)}  {format_bytes(rate)}/s"
        return f"{done} of {total} {self._unit}  {rate:.3g}/s"


class _TerminalDisplay:
    """Redraws one line of a terminal."""

    first_s, period_s = _FIRST_S, _REDRAW_S

    def __init__(self, stream: TextIO) -> None:
        self._line = TerminalLine(stream)
        self.show = self._line.show
        self.close = self._line.close

    @property
    def columns(self) -> int:
        return columns()


class _LauncherDisplay:
    """Sends the line to the launcher, which draws it on its terminal."""

    first_s, period_s = _FIRST_S, _REDRAW_S

    def __init__(self, stream: TextIO, columns: int) -> None:
        self.columns = columns
        self._stream = stream
        self._is_shown = False

    def show(self, text: str) -> None:
        self._is_shown = bool(text)
        _print(self._stream, FRAME_START.decode() + text + FRAME_END.decode())

    def close(self) -> None:
        if self._is_shown:
            self.show("")


class _LogDisplay:
    """Writes a line every 30 seconds."""

    first_s, period_s, columns = _LOG_PERIOD_S, _LOG_PERIOD_S, 0

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, text: str) -> None:
        _print(self._stream, text + "\n")

    def close(self) -> None:
        """Do nothing: the lines stay."""


_Display: TypeAlias = "_TerminalDisplay | _LauncherDisplay | _LogDisplay"


def _display(stream: TextIO) -> _Display:
    if stream.isatty():
        return _TerminalDisplay(stream)
    if stream is sys.stderr:
        with contextlib.suppress(OSError, ValueError):  # a stream without a descriptor
            if columns := env.launcher_columns(stream.fileno()):
                return _LauncherDisplay(stream, columns)
    return _LogDisplay(stream)


def _is_open(stream: TextIO | None) -> TypeGuard[TextIO]:
    return stream is not None and not stream.closed


def _print(stream: TextIO, text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # a full disk or a closed pipe must not end a task
        stream.write(text)
        stream.flush()
