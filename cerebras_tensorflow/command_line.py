"""Code that all our commands share: both spellings of options, --version, --debug, one-line errors, lost readers.

def main(argv=None):
    options = _parser().parse_args(argv)  # a command_line.Parser
    return command_line.exit_code("cs-plan", lambda: _run(options))
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from cerebras_tensorflow.config import env
from cerebras_tensorflow.errors import CerebrasError
from cerebras_tensorflow.text import did_you_mean, one_line, tell
from cerebras_tensorflow.version import __version__

_COMMON = ("version", "debug")
"""Options that every command has, and that a usage line does not show."""

_ANY_WIDTH = 10_000
_LONGEST_WORD = 80

INTERRUPTED = 128 + signal.SIGINT
NO_READER = 128 + signal.SIGPIPE

_INVALID_CHOICE = re.compile(r"invalid choice: '(.*)' \(choose from (.*)\)$", re.S)
_NO_SUCH = re.compile(r"^unrecognized arguments: (.*)$", re.S)
_MISSING = re.compile(r"^the following arguments are required: ")


class Parser(argparse.ArgumentParser):
    """An argparse parser with --version and --debug. It accepts hyphens for underscores, and suggests similar words.

    The help has the usage in one line, and below it what the command is for, so that `--help | head -3` shows both.
    Parsers of sub-commands have this class too.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **{"formatter_class": _ShortUsage, **settings})
        self.register("action", "parsers", _Commands)
        self._words: list[str] = []
        if self.add_help:
            self.add_argument("--version", action="version", version=f"{self.prog.split()[0]} {__version__}")
            self.add_argument("--debug", action=_Debug, help="show the traceback of an error")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Return the options and the remaining words. Options may be spelled with hyphens or underscores."""
        self._words = [self._own_spelling(word) for word in (sys.argv[1:] if args is None else args)]
        return super().parse_known_args(self._words, namespace)

    def error(self, message: str) -> NoReturn:
        """Exit with code 2 and one line that suggests a similar word, or else names --help."""
        if match := _INVALID_CHOICE.search(message):
            message += did_you_mean(match[1], [word.strip().strip("'") for word in match[2].split(",")])
        elif match := _NO_SUCH.match(message):
            message += did_you_mean(_name(match[1].split()[0]), _options(self, self._words))
        elif _MISSING.match(message):
            message += self._mistyped()
        hint = "" if "did you mean" in message else f"; {self.prog} --help explains the options"
        self.exit(2, f"{error_line(self.prog, one_line(message))}{hint}\n")

    def _mistyped(self) -> str:
        """Return a suggestion for a message about a missing option: the user may have mistyped its name."""
        known = _options(self, self._words)
        unknown = [_name(word) for word in self._words if word.startswith("--") and _name(word) not in known]
        return f"; {unknown[0]} is unknown{did_you_mean(unknown[0], known)}" if unknown else ""

    def _own_spelling(self, word: str) -> str:
        if not word.startswith("--"):
            return word
        name, separator, value = word.partition("=")
        spelling = name[2:].replace("_", "-")
        for option in self._option_string_actions:  # argparse has no public list of its options
            if option[2:].replace("_", "-") == spelling:
                return f"{option}{separator}{value}"
        return word


def _options(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """Return the long options of a parser, and of those of its sub-commands that the words contain."""
    names = [name for name in parser._option_string_actions if name.startswith("--")]  # noqa: SLF001 (no public list)
    for action in parser._actions:  # noqa: SLF001 (no public list)
        if isinstance(action.choices, dict):
            for command, child in action.choices.items():
                names += _options(child, words) if command in words else []
    return names


def _name(word: str) -> str:
    """Return the name of an option, without its value."""
    return word.partition("=")[0]


class _ShortUsage(argparse.HelpFormatter):
    """Shows only arguments and required options in the usage; the list below it explains all options."""

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: str | None = None) -> None:
        """Add the usage, in one line however long it is."""
        if usage is not None:
            super().add_usage(usage, actions, groups, prefix)
            return
        actions = list(actions)
        options = [action for action in actions if action.option_strings]
        others = [action for action in options if not action.required and action.dest not in ("help", *_COMMON)]
        shown = [action for action in options if action.dest == "help" or action.required]
        if others:
            shown.append(argparse.Action(["OPTION ..."], "others", nargs=0))
        arguments = [action for action in actions if not action.option_strings]
        line = argparse.HelpFormatter(self._prog, width=_ANY_WIDTH)
        line.add_usage(None, [*shown, *arguments], [], prefix="")
        super().add_usage(line.format_help().strip().replace("%", "%%"), [], [], prefix)


class _Commands(argparse._SubParsersAction):  # type: ignore[type-arg]  # noqa: SLF001 (argparse has no public class)
    """Sub-commands, whose own help begins with their line in the list of commands."""

    def add_parser(self, name: str, **settings: Any) -> Any:
        """Return the parser of a new sub-command."""
        text = str(settings.get("help", ""))
        return super().add_parser(name, **{"description": text[:1].upper() + text[1:], **settings})


class _Debug(argparse.Action):
    """Sets the environment variable, so that processes that the command starts show tracebacks too."""

    def __init__(self, option_strings: Sequence[str], dest: str, **settings: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **{**settings, "default": argparse.SUPPRESS})

    def __call__(self, *_: object) -> None:
        env.set_debug()


def exit_code(
    program: str,
    run: Callable[[], int],
    *,
    errors: tuple[type[BaseException], ...] = (CerebrasError, ValueError),
    failure: int = 1,
    prefix: str = "",
) -> int:
    """Return the exit code of a command.

    An expected error or an OSError prints one line on standard error, without a traceback: a file or socket that we
    cannot use is not a bug. A Ctrl-C returns 130. If the reader of the output has exited (`| head`), the command
    returns 141 and prints nothing, as other programs do.

    Args:
        program: Name of the command, for the message.
        run: The command.
        errors: Exceptions that a user's mistake may raise.
        failure: Exit code for these exceptions.
        prefix: What precedes an error's text, if the published command has another form than ours.
    """
    expected: tuple[type[BaseException], ...] = (*errors, OSError)
    try:
        code = run()
        _flush_output(program)
    except BrokenPipeError:
        drop_output()
        return NO_READER
    except KeyboardInterrupt:
        return INTERRUPTED
    except expected as error:
        text = _text(error)
        show(error, f"{prefix}{text}" if prefix else error_line(program, text))
        return failure
    return code


def _text(error: BaseException) -> str:
    if (
        isinstance(error, UnicodeEncodeError) and error.encoding == "utf-8"
    ):  # a word of the command line has other bytes
        return f"{error.object[:_LONGEST_WORD]!r} is not UTF-8 text"
    return str(error)


def _flush_output(program: str) -> None:
    if sys.stdout is None:  # standard output is closed
        return
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:  # the disk is full; the command itself has succeeded
        drop_output()
        show(error, warning_line(program, f"standard output cannot be written: {error.strerror}"))


def error_line(program: str, error: object) -> str:
    """Return an error in the form that all commands use on a terminal: `PROGRAM: error: TEXT`."""
    return f"{program}: error: {error}"


def warning_line(program: str, text: object) -> str:
    """Return a line about something after which a command goes on: `PROGRAM: warning: TEXT`."""
    return f"{program}: warning: {text}"


def show(error: BaseException, line: str) -> None:
    """Print an error as a line on standard error, after its traceback if --debug or CEREBRAS_DEBUG asks for it."""
    if env.is_debug():
        import traceback

        traceback.print_exception(error)
    tell(line)


def drop_output() -> None:
    """Discard the buffer of standard output, so that Python does not report an error when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
