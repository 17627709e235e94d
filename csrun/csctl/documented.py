"""Documented csctl commands and options that a simulated cluster has no use for: each is refused with the reason."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from csrun.csctl.resources import ResourceError

_NO_HARDWARE = "the systems are simulated, and have no hardware to maintain"
_NO_SESSIONS = "no system is reserved here: jobs wait for systems in one queue (csctl get jobs)"
_NO_USERS = "there are no user accounts here; csctl cancel job ends a job"
_REASONS = {
    ("system-maintenance",): _NO_HARDWARE,
    ("node-maintenance",): _NO_HARDWARE,
    ("system",): _NO_HARDWARE,
    ("debug-artifact",): "jobs keep no debug artifacts here; csctl log-export JOB gathers a job's record and log",
    ("user",): _NO_USERS,
    ("session", "create"): _NO_SESSIONS,
    ("session", "update"): _NO_SESSIONS,
    ("session", "delete"): _NO_SESSIONS,
    ("session", "debug-update"): _NO_SESSIONS,
    ("session", "pause-pending-jobs"): _NO_SESSIONS,
    ("session", "unpause-pending-jobs"): _NO_SESSIONS,
    ("completion",): "csctl --help lists the commands, and csctl COMMAND --help the options",
    ("job", "topology"): "a job's systems have no placement in a network; csctl cluster topology shows all systems",
}

_NO_PRIORITIES = "fields of objects have no priorities here, and -o json shows all; csctl --debug shows tracebacks"
_EVERYWHERE: dict[tuple[str, ...], str] = {
    ("--csconfig",): "csctl asks no server; CEREBRAS_HOME names another folder of jobs",
    ("-d",): _NO_PRIORITIES,
}
_OPTIONS: dict[str, dict[tuple[str, ...], str]] = {
    "csctl get": {
        ("--workflow",): "jobs belong to no workflow",
        ("--version",): "all parts have the version that csctl get version shows",
        ("--pending-status",): "csctl get jobs shows the jobs that wait",
    },
    "csctl log-export": {
        ("-b", "--binaries"): "the archive holds a job's record and logs, and no binaries",
        ("-c", "--compile-artifacts"): "the archive holds a job's record and logs, and no compiled files",
        ("--copy-nfs-logs",): "all logs are on this machine, and in the archive",
        ("--num-lines",): "the archive holds whole logs",
        ("--tasks",): "the archive holds the logs of all tasks",
        ("--timeout",): "the archive is written while the command runs",
    },
}
_WITH_A_VALUE = ("-n", "--namespace")


def refuse(words: Sequence[str]) -> None:
    """Refuse a documented command that is not simulated, and a number after --debug.

    Args:
        words: The command line.

    Raises:
        ResourceError: If it is one.
    """
    for word, value in zip(words, [*words[1:], ""], strict=True):
        if word.startswith("--debug=") or (word == "--debug" and value.isdecimal()):
            raise _refused("csctl --debug N", _NO_PRIORITIES)
    while words and words[0].startswith("-"):
        if words[0] in ("-h", "--help"):
            return
        words = words[2 if words[0] in _WITH_A_VALUE else 1 :]
    for command, reason in _REASONS.items():
        if tuple(words[: len(command)]) == command:
            raise _refused(f"csctl {' '.join(command)}", reason)


def add_refused_options(parser: argparse.ArgumentParser) -> None:
    """Add the documented options of a command, or of all commands, that are not simulated."""
    for names, reason in {**_EVERYWHERE, **_OPTIONS.get(parser.prog, {})}.items():
        parser.add_argument(*names, action=_Refused, reason=reason)


class _Refused(argparse.Action):
    """An option, with or without a value, that the help leaves out."""

    def __init__(self, option_strings: Sequence[str], dest: str, reason: str) -> None:
        super().__init__(option_strings, dest, nargs="?", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        self._reason = reason

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        """Refuse the option."""
        raise _refused(f"{parser.prog} {self.option_strings[-1]}", self._reason)


def _refused(what: str, reason: str) -> ResourceError:
    return ResourceError(f"{what} is not simulated: {reason}")
