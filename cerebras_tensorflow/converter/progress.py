"""How far a conversion is, on a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TextIO

# (what is done one by one, how many there are, words) -> the same items.
Watch = Callable[[Iterable[Any], int, str], Iterable[Any]]

_WIDTH = 30  # characters of the bar
_INTERVAL_S = 0.1  # between two drawings: a terminal over a network is slow


def unwatched(items: Iterable[Any], _total: int, _words: str) -> Iterable[Any]:
    """Return the items; nobody looks on."""
    return items


def watch_on(stream: TextIO) -> Watch:
    """Return a Watch that draws a bar on a stream, or does nothing where that is no terminal."""
    if not stream.isatty():
        return unwatched

    def watched(items: Iterable[Any], total: int, words: str) -> Iterator[Any]:
        drawn_s = 0.0
        try:
            for number, item in enumerate(items):
                if time.monotonic() - drawn_s >= _INTERVAL_S:
                    drawn_s = time.monotonic()
                    stream.write(f"\r{drawing(number, total, words)}")
                    stream.flush()
                yield item
            stream.write(f"\r{drawing(total, total, words)}")
        finally:  # what is told next, an error too, has a line of its own
            stream.write("\n")
            stream.flush()

    return watched


def drawing(number: int, total: int, words: str) -> str:
    """Return the bar as text.

    >>> drawing(15, 60, "Converting Checkpoint")
    'Converting Checkpoint:  25%|#######                       | 15/60'
    """
    share = number / total if total else 1.0
    bar = "#" * int(share * _WIDTH)
    return f"{words}: {share:4.0%}|{bar:<{_WIDTH}}| {number}/{total}"
