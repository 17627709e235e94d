"""The shell of one login over ssh: `python -m csrun.shell.login`, started by ssh.py for a user whom it has let in.

A process of its own for each login: at the terminal it is the same program as `cs`, and whatever happens to it, the
server goes on.
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
    """Return the words that start this module; each line stays one word, and no shell sees it."""
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
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C, the size and a hang-up of the terminal reach us
    return cli.run(arguments.system, arguments.line, Login(arguments.who, arguments.may_change))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
