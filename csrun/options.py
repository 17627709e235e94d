"""Parses command-line options as the 1.x launchers do: hyphens or underscores; the first other word begins the command.

An unknown option is ignored with a warning, because scripts for one release of the original use options of another. If
the value of an unknown option is the next word, that word becomes the command. So the warning suggests an option, and
`command_hint` explains the failure that follows. A word that is nearly an option is usually a typo, and is refused: a
launch instead of a `--dry-run` may cost hours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from cerebras_tensorflow.text import is_number, near

HELP = ("-h", "-?", "--help")


NEAR_MISS = 0.84
"""Similarity from which a word is a typo. Any two options of different launchers or releases are less similar."""


class UsageError(Exception):
    """A command line that is wrong; the text is for the user."""

    exit_code = 1


class MistypedError(UsageError):
    """An unknown option that is similar to a known one, so probably a typo."""

    exit_code = 2


@dataclass(frozen=True)
class Option:
    """One option.

    Attributes:
        name: Without leading dashes, words separated by hyphens. Users may write underscores instead.
        kind: Type of its value; a flag needs no value.
        meaning: Text for the help.
        metavar: Names the value in the message that it is missing.
        minimum: Smallest number accepted.
        aliases: Names in earlier releases.
    """

    name: str
    kind: Literal["flag", "number", "text", "truth"]
    meaning: str
    metavar: str = ""
    minimum: int = 1
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class Parsed:
    """A parsed command line."""

    values: Mapping[str, str | int | bool]
    command: tuple[str, ...]
    unknown: tuple[str, ...]
    warnings: tuple[str, ...]
    wants_help: bool

    def text(self, name: str, default: str) -> str:
        """Return the value of a text option."""
        return str(self.values.get(name, default))

    def number(self, name: str) -> int | None:
        """Return the value of a number option; None if it was not given."""
        value = self.values.get(name)
        return None if value is None else int(value)

    def truth(self, name: str, default: bool) -> bool:
        """Return the value of a flag or a True/False option."""
        return bool(self.values.get(name, default))


def parse(argv: Sequence[str], options: Sequence[Option]) -> Parsed:
    """Return the options and the command. The command begins at the first word that is not an option.

    Raises:
        UsageError: If a value is missing or of the wrong kind.
        MistypedError: If an unknown option is nearly a known one.
    """
    by_name = {name: option for option in options for name in (option.name, *option.aliases)}
    values: dict[str, str | int | bool] = {}
    unknown: list[str] = []
    warnings: list[str] = []
    words = list(argv)
    while words and words[0].startswith("-") and words[0] != "-":
        word = words.pop(0)
        if word == "--":
            break
        if word in HELP:
            return Parsed(values, tuple(words), tuple(unknown), tuple(warnings), wants_help=True)
        name, separator, inline = word.removeprefix("--").partition("=")
        option = by_name.get(name.replace("_", "-")) if word.startswith("--") else None
        if option is None:
            if meant := near(name, by_name, NEAR_MISS):
                raise MistypedError(f"ERROR: Unknown option {word}; did you mean --{meant}?")
            unknown.append(word)
            meant = near(name, by_name)
            hint = f"; did you mean --{by_name[meant].name}?" if meant else ""
            warnings.append(f"WARN: Unknown option (ignored): {word}{hint}")
        elif option.kind == "flag":
            values[option.name] = _truth(word, inline) if separator else True
        else:
            value = inline if separator else _next_value(words, option.kind == "number")
            if not value:
                raise UsageError(f'ERROR: "--{option.name}" requires a non-empty argument ({option.metavar})')
            values[option.name] = _converted(option, value)
    return Parsed(values, tuple(words), tuple(unknown), tuple(warnings), wants_help=False)


def command_hint(parsed: Parsed) -> str:
    """Return a hint why a command was not found: its first word may be the value of an ignored option; else empty."""
    if parsed.unknown and parsed.command:
        return f" (the option {parsed.unknown[-1]} is unknown and was ignored; was this its value?)"
    return ""


def _next_value(words: list[str], takes_number: bool) -> str:
    # A word with a dash is the next option: `--mount-dirs --cyclic` lacks a value. But -1 is a number, out of range.
    is_value = bool(words) and (not words[0].startswith("-") or (takes_number and words[0][1:].isdigit()))
    return words.pop(0) if is_value else ""


def _converted(option: Option, value: str) -> str | int | bool:
    if option.kind == "truth":
        return _truth(f"--{option.name}", value)
    if option.kind == "text":
        return value
    if not is_number(value) or int(value) < option.minimum:
        raise UsageError(f'ERROR: "--{option.name}" requires a number from {option.minimum}, not {value!r}')
    return int(value)


def _truth(word: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise UsageError(f'ERROR: "{word.partition("=")[0]}" requires True or False, not {value!r}')
    return value.lower() == "true"
