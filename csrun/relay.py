"""Relays a child's output to this process's own, with a copy in a log. A full disk stops neither child nor relay."""

from __future__ import annotations

import os
import selectors
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TextIO

from csrun.console import tell

CHUNK_BYTES = 1 << 16


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
        for pipe, target in pipes:
            if pipe is not None:
                selector.register(pipe, selectors.EVENT_READ, target)

    def __enter__(self) -> Relay:
        if self._log is not None:
            try:
                self._copy = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
            except OSError as exc:
                self._tell_once("the log", f"csrun: there is no log: {exc}. The run continues")
        return self

    def __exit__(self, *error: object) -> None:
        if self._copy is not None:
            os.close(self._copy)

    def pass_on(self, key: selectors.SelectorKey) -> None:
        """Read from a pipe, and write to the output and the log."""
        data = os.read(key.fd, CHUNK_BYTES)
        if not data:
            self._selector.unregister(key.fileobj)
            return
        if self._copy is not None:
            try:
                _write_all(self._copy, data)
            except OSError as exc:
                self._tell_once(
                    "the log", f"csrun: the log {self._log} lacks output: {exc.strerror}. The run continues"
                )
        try:
            key.data.flush()
            _write_all(key.data.fileno(), data)
        except BrokenPipeError:
            # Our reader has exited (`| head`), so the child must get a broken pipe too.
            self._selector.unregister(key.fileobj)
            os.close(key.fd)
        except OSError as exc:
            name = "standard output" if key.data is sys.stdout else "standard error"
            self._tell_once(name, f"csrun: {name} cannot be written: {exc.strerror}. The run continues")

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
