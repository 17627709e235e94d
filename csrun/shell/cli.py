"""The command `cs`: the admin shell of a system. Commands come from a terminal, from -c, or from a script."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Iterable, Sequence

from cerebras_tensorflow import command_line
from cerebras_tensorflow.errors import CerebrasError
from cerebras_tensorflow.system import registry
from csrun.shell import prompts
from csrun.shell.commands import OK, REFUSED, Login, Session, execute

PROMPT = "cs> "
LEAVING = ("exit", "quit", "logout")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the shell and return the exit code: 0, 1 for a refused command, 2 for an unknown one."""
    arguments = _parser().parse_args(argv)
    return run(arguments.system, arguments.command or (), Login())


def run(system_name: str | None, lines: Sequence[str], login: Login) -> int:
    """Run the given lines, or else the lines of standard input; return the exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    return command_line.exit_code("cs", lambda: _carried_out(system_name, lines, login), failure=REFUSED)


def _carried_out(system_name: str | None, lines: Sequence[str], login: Login) -> int:
    system = registry.find_here(system_name)
    if lines:
        # Questions read their answers from standard input, so that `yes | cs -c "system standby"` works.
        return _script(_session(system, login), lines)
    if sys.stdin.isatty():
        return _interactive(system, login)
    return _script(_session(system, login), iter(sys.stdin.readline, ""))


def _parser() -> argparse.ArgumentParser:
    parser = command_line.Parser(
        prog="cs",
        description="The admin shell of a simulated CS system: its state and its execution mode.",
        epilog='Examples: cs -c "config execmode show"; cs --system lab -c "system standby --yes" -c "config execmode '
        'setup weight_streaming" -c "system activate"; cs < script. A script ends at the first command that fails.',
    )
    parser.add_argument("--system", metavar="NAME|ADDRESS", help="the system (default: the embedded one)")
    parser.add_argument("-c", "--command", action="append", metavar="LINE", help="run LINE and exit; repeatable")
    return parser


def _session(system: registry.LocalSystem, login: Login) -> Session:
    return Session(system.home, system.name, _say, prompts.chosen_from_lines(sys.stdin, _say), login)


def _script(session: Session, lines: Iterable[str]) -> int:
    for line in lines:
        if line.strip() in LEAVING:
            break
        try:
            code = execute(session, line)
        except CerebrasError as exc:
            command_line.show(exc, command_line.error_line("cs", exc))
            code = REFUSED
        if code != OK:
            return code
    return OK


def _interactive(system: registry.LocalSystem, login: Login) -> int:
    # Only administrators have a history file. Others have a history for this login only.
    is_kept = login.may_change and os.access(system.home, os.W_OK)
    prompt = prompts.make_prompt(str(system.home / "cs_history") if is_kept else None)
    choose = prompts.chosen_at_terminal(_say)
    lines: list[str] = []
    while True:
        try:
            line = prompt.prompt(PROMPT)
        except KeyboardInterrupt:
            continue
        except EOFError:
            return OK
        if line.strip() in LEAVING:
            return OK
        lines.append(line)
        try:
            execute(Session(system.home, system.name, _say, choose, login, lines), line)
        except CerebrasError as exc:
            _say(command_line.error_line("cs", exc))
        except KeyboardInterrupt:
            _say("")


def _say(line: str) -> None:
    print(line, flush=True)
