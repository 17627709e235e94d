"""Text for users: suggestions for mistyped words, and text of unknown origin made safe for terminals and files."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

LIKENESS = 0.6
_MAX_DIGITS = 18
_MAX_PORT = 65535


def is_number(text: str) -> bool:
    r"""Whether a text is a whole number from 0 in ASCII digits, of at most 18 digits.

    >>> is_number("12"), is_number("-1"), is_number("\u00b2"), is_number("9" * 5000)
    (True, False, False, False)
    """
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS


def is_port(text: str) -> bool:
    """Whether a text is the number of a TCP port, from 0 to 65535. A server that listens on 0 gets any free port.

    >>> is_port("9000"), is_port("65536"), is_port("")
    (True, False, False)
    """
    return is_number(text) and int(text) <= _MAX_PORT


def near(word: str, known: Iterable[str], likeness: float = LIKENESS) -> str:
    """Return the known word that is most similar to a word, empty if none is. Hyphens count as underscores.

    Args:
        word: The word as the user wrote it.
        known: The known words.
        likeness: Smallest similarity that counts, from 0 to 1.

    >>> near("pyhton-ws", ["python", "python-ws"]), near("ft", ["hf", "tf"]), near("x", ["python"])
    ('python-ws', 'tf', '')
    """
    from difflib import get_close_matches  # slow to import; only a mistyped word needs it

    by_spelling = {name.lower().replace("_", "-"): name for name in known}
    spelling = word.lower().replace("_", "-")
    swapped = [name for name in by_spelling if len(word) > 1 and sorted(name) == sorted(spelling)]
    matches = swapped or get_close_matches(spelling, list(by_spelling), n=1, cutoff=likeness)
    return by_spelling[matches[0]] if matches else ""


def did_you_mean(word: str, known: Iterable[str], likeness: float = LIKENESS) -> str:
    """Return the end of a message about an unknown word; empty if no known word is similar.

    >>> did_you_mean("lst", ["create", "list"])
    "; did you mean 'list'?"
    """
    name = near(word, known, likeness)
    return f"; did you mean {name!r}?" if name else ""


def did_you_mean_file(path: str | os.PathLike[str], pattern: str = "*") -> str:
    """Return the end of a message about a missing file; empty if no file has a similar path.

    Args:
        path: Path of the file. Its name, or the name of one of its folders, is mistyped.
        pattern: Pattern of the names of such files.
    """
    place = missing = Path(path)
    try:
        while not missing.parent.exists():
            missing = missing.parent
        name = near(missing.name, [beside.name for beside in missing.parent.glob(pattern if missing == place else "*")])
        meant = missing.with_name(name) / place.relative_to(missing) if name else missing
        return f"; did you mean {str(meant)!r}?" if name and meant.exists() else ""
    except (OSError, ValueError):
        return ""


def one_line(text: str) -> str:
    r"""Return a text with control characters escaped, so that a terminal shows them and does not execute them.

    >>> one_line("red \x1b[31m\n")
    'red \\x1b[31m\\n'
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def tell(text: str) -> None:
    """Print lines on standard error, escaped by `one_line`. A closed terminal or a full disk must not end a command."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            print("\n".join(map(one_line, text.splitlines())), file=sys.stderr, flush=True)


def printable(text: str) -> str:
    r"""Return a text that can be encoded as UTF-8: bytes of an argument that are not UTF-8 are escaped.

    >>> printable("caf\udce9")
    'caf\\xe9'
    """
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
