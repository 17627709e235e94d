"""What the launchers say to the person at the terminal. A terminal or a log that takes nothing more ends no launch."""

from __future__ import annotations

import sys
from contextlib import suppress

from cerebras_tensorflow.text import one_line


def tell(line: str) -> None:
    """Print a line on standard error. Control characters in it are written out."""
    with suppress(OSError, ValueError):
        print("\n".join(map(one_line, line.splitlines())), file=sys.stderr, flush=True)


def say(line: str) -> None:
    """Print a line on standard output, bytes of the command line as they are.

    Raises:
        BrokenPipeError: If nobody reads it any more.
    """
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(f"{line}\n".encode(errors="surrogateescape"))
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as exc:
        tell(f"csrun: standard output cannot be written: {exc.strerror}")
