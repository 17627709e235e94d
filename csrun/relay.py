"""Relays a child's output to our own, with a copy in a log. A full disk stops neither the child nor the relay.

A child behind a pipe cannot draw on our terminal. If we have a terminal, the child sends each progress line as a frame.
We remove the frame from the output and draw the line; see cerebras_tensorflow/progress.py.
"""

from __future__ import annotations

import os
import selectors
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TextIO

from cerebras_tensorflow.config import env
from cerebras_tensorflow.progress import FRAME, FRAME_START, TerminalLine, columns
from cerebras_tensorflow.text import tell

CHUNK_BYTES = 1 << 16


def environment() -> dict[str, str]:
    """Return the variables that tell a child whether we show its progress lines."""
    return {env.PROGRESS: str(columns() if _has_terminal() else 0)}


def _has_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


class Frames:
    """Separates the progress frames in one stream of bytes from the other output."""

    def __init__(self) -> None:
        self._held = b""

    def split(self, data: bytes) -> tuple[bytes, list[str]]:
        """Return the other output, and the texts of the frames. An incomplete frame waits for the next call.

        Args:
            data: The next bytes. Empty at the end of the stream: then the result is the rest of the output.
        """
        if not data:
            rest, self._held = self._held, b""
            return rest, []
        data = self._held + data
        texts = [text.decode(errors="replace") for text in FRAME.findall(data)]
        output = FRAME.sub(b"", data)
        begin = _incomplete_frame(output)
        self._held = output[begin:]
        return output[:begin], texts


def _incomplete_frame(output: bytes) -> int:
    """Return the start of an incomplete frame at the end of the output; the length of the output if there is none."""
    begin = output.rfind(FRAME_START)
    if begin >= 0 and b"\n" not in output[begin:]:
        return begin
    lengths = range(len(FRAME_START) - 1, 0, -1)
    return len(output) - next((length for length in lengths if output.endswith(FRAME_START[:length])), 0)


class Relay:
    """Reads a child's pipes; use it in a `with` statement. Final.

    If the log or an output cannot be written, one line says so, and the rest is dropped: losing a log never ends a run.

    Args:
        selector: The pipes are registered here.
        pipes: Each pipe of the child, and the stream to write to. The pipe is None if the child writes directly.
        log: File that gets a copy; None: no copy.
    """

    def __init__(
        self, selector: selectors.BaseSelector, pipes: Sequence[tuple[IO[bytes] | None, TextIO]], log: Path | None
    ) -> None:
        self._selector = selector
        self._log = log
        self._copy: int | None = None
        self._told: set[str] = set()
        self._line = TerminalLine(sys.stderr) if _has_terminal() else None
        for pipe, target in pipes:
            if pipe is not None:
                selector.register(pipe, selectors.EVENT_READ, (target, Frames()))

    def __enter__(self) -> Relay:
        if self._log is not None:
            try:
                self._copy = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            except OSError as exc:
                self._tell_once("the log", f"csrun: warning: there is no log: {exc}. The run continues")
        return self

    def __exit__(self, *error: object) -> None:
        if self._line is not None:
            self._line.close()
        if self._copy is not None:
            os.close(self._copy)

    def pass_on(self, key: selectors.SelectorKey) -> None:
        """Read from a pipe, and write to the output and the log."""
        target, frames = key.data
        data = os.read(key.fd, CHUNK_BYTES)
        output, texts = frames.split(data)
        if not data:
            self._selector.unregister(key.fileobj)
        if output:
            self._write(key, target, output)
        if texts and self._line is not None:
            self._line.show(texts[-1])

    def _write(self, key: selectors.SelectorKey, target: TextIO, data: bytes) -> None:
        if self._line is not None and target.isatty():
            self._line.make_room(data[-4:].decode("latin-1"))
        if self._copy is not None:
            try:
                _write_all(self._copy, data)
            except OSError as exc:
                self._tell_once(
                    "the log", f"csrun: warning: the log {self._log} lacks output: {exc.strerror}. The run continues"
                )
        try:
            target.flush()
            _write_all(target.fileno(), data)
        except BrokenPipeError:
            # Our reader has exited (`| head`), so the child must get a broken pipe too.
            if key.fd in self._selector.get_map():
                self._selector.unregister(key.fileobj)
                os.close(key.fd)
        except OSError as exc:
            name = "standard output" if target is sys.stdout else "standard error"
            self._tell_once(name, f"csrun: warning: {name} cannot be written: {exc.strerror}. The run continues")

    def drain(self) -> None:
        """Pass on what is still in the pipes."""
        while self._selector.get_map():
            for key, _ in self._selector.select():
                self.pass_on(key)

    def _tell_once(self, place: str, line: str) -> None:
        if place not in self._told:
            self._told.add(place)
            tell(line)


def _write_all(handle: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(handle, rest) :]
        except BlockingIOError:  # another process has made the terminal or pipe non-blocking
            with selectors.DefaultSelector() as selector:
                selector.register(handle, selectors.EVENT_WRITE)
                selector.select()
