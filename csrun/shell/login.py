"""The shell of one login over ssh: ssh.py starts `python -m csrun.shell.login` for each user who has logged in.

Each login has its own process: it behaves like `cs` at a terminal, and if it crashes, the server continues.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import sys
import termios
from collections.abc import Sequence

from csrun.shell import cli
from csrun.shell.commands import Login


def command_line(system: str, login: Login, lines: Sequence[str]) -> list[str]:
    """Return the command that starts this module. Each line is one argument, and no Unix shell interprets it."""
    words = [sys.executable, "-m", "csrun.shell.login", "--system", system, f"--who={login.who}"]
    return [*words, *(["--may-change"] if login.may_change else []), *(f"--line={line}" for line in lines)]


def main(argv: Sequence[str]) -> int:
    """Run the shell and return its exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--system", required=True)
    parser.add_argument("--who", required=True)
    parser.add_argument("--may-change", action="store_true")
    parser.add_argument("--line", action="append", default=[])
    arguments = parser.parse_args(argv)
    if os.isatty(0):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that this process gets Ctrl-C, resizes and hang-ups of the terminal
    return cli.run(arguments.system, arguments.line, Login(arguments.who, arguments.may_change))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
