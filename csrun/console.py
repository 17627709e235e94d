"""What the launchers say to the person at the terminal, on standard error; standard output is the command's."""

from __future__ import annotations

import sys
from contextlib import suppress

from cerebras_tensorflow.text import one_line


def tell(line: str) -> None:
    """Print a line. Control characters in it are written out; a terminal that is gone does not end the launch."""
    with suppress(OSError, ValueError):
        print("\n".join(map(one_line, line.splitlines())), file=sys.stderr, flush=True)
