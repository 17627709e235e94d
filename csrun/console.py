"""Lines that the launchers print for the user. A closed terminal or a full disk does not end a launch."""

from __future__ import annotations

import sys

from cerebras_tensorflow.text import tell


def say(line: str) -> None:
    """Print a line on standard output; bytes of the command line stay unchanged.

    Raises:
        BrokenPipeError: If the reader of the pipe has closed it.
    """
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(f"{line}\n".encode(errors="surrogateescape"))
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as exc:
        tell(f"csrun: warning: standard output cannot be written: {exc.strerror}")
