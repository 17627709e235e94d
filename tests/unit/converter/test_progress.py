"""A bar on a terminal, and nothing elsewhere."""

from __future__ import annotations

import io
import os
from contextlib import suppress

import pytest

from cerebras_tensorflow.converter.progress import unwatched, watch_on


def shown(terminal: int) -> str:
    """What a terminal whose other end is closed has got."""
    found = b""
    with suppress(OSError):  # the end of a pseudo-terminal
        while piece := os.read(terminal, 10_000):
            found += piece
    os.close(terminal)
    return found.decode()


def test_a_terminal_gets_a_bar_that_ends_full() -> None:
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as terminal:
        items = list(watch_on(terminal)(iter("abc"), 3, "Converting Checkpoint"))
    drawn = shown(ours)
    assert items == ["a", "b", "c"]
    assert drawn.startswith("\rConverting Checkpoint:   0%|") and "100%|" + 30 * "#" + "| 3/3\r\n" in drawn


def test_what_follows_an_error_has_its_own_line() -> None:
    ours, theirs = os.openpty()
    with os.fdopen(theirs, "w") as terminal:

        def fails() -> object:
            raise OSError

        with pytest.raises(OSError):
            list(watch_on(terminal)((fails() for _ in range(3)), 3, "Converting Checkpoint"))
        terminal.write("error")
    drawn = shown(ours)
    assert drawn.endswith("\nerror") and "100%" not in drawn


def test_a_file_gets_nothing() -> None:
    assert watch_on(io.StringIO()) is unwatched
