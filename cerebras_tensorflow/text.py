"""Text for people: what was probably meant, and text from others that a terminal or a file may take."""

from __future__ import annotations

from collections.abc import Iterable

LIKENESS = 0.6


def near(word: str, known: Iterable[str], likeness: float = LIKENESS) -> str:
    """Return the known word that is most like a word, empty if none is like it; hyphens count as underscores.

    Args:
        word: As the user wrote it.
        known: What there is.
        likeness: Least likeness, from 0 to 1.

    >>> near("pyhton-ws", ["python", "python-ws"]), near("x", ["python"])
    ('python-ws', '')
    """
    from difflib import get_close_matches  # only a mistyped word pays for it

    by_spelling = {name.lower().replace("_", "-"): name for name in known}
    matches = get_close_matches(word.lower().replace("_", "-"), list(by_spelling), n=1, cutoff=likeness)
    return by_spelling[matches[0]] if matches else ""


def did_you_mean(word: str, known: Iterable[str], likeness: float = LIKENESS) -> str:
    """Return the end of a message about an unknown word, empty if no known word is like it.

    >>> did_you_mean("lst", ["create", "list"])
    "; did you mean 'list'?"
    """
    name = near(word, known, likeness)
    return f"; did you mean {name!r}?" if name else ""


def one_line(text: str) -> str:
    r"""Return a text that a terminal shows and does not obey: control characters are written out.

    >>> one_line("red \x1b[31m\n")
    'red \\x1b[31m\\n'
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def printable(text: str) -> str:
    r"""Return a text that every file and terminal takes: bytes of an argument that are no UTF-8 are written out.

    >>> printable("caf\udce9")
    'caf\\xe9'
    """
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
