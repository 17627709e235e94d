"""What `python`, `python-ws` and `python-pt` mean inside a launch: this Python, in an execution mode."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from cerebras_tensorflow import config
from cerebras_tensorflow.config import env

MODES: Mapping[str, str | None] = {
    "python": env.PIPELINED,
    "python3": env.PIPELINED,
    "python-tf": env.PIPELINED,
    "python-ws": env.WEIGHT_STREAMING,
    "python-pt": None,
}
"""Execution mode by the command's first word; None: PyTorch, which chooses no mode of ours."""


def execution_mode(command: Sequence[str]) -> str | None:
    """Return the mode that a command's first word chooses; None when it chooses none.

    >>> execution_mode(["python-ws", "run.py"]), execution_mode(["bash", "train.sh"])
    ('weight_streaming', None)
    """
    return MODES.get(command[0]) if command else None


def resolved(command: Sequence[str]) -> tuple[str, ...]:
    """Return the command with this Python in the place of one of its names."""
    if command and command[0] in MODES:
        return (sys.executable, *command[1:])
    return tuple(command)


def environment(command: Sequence[str]) -> dict[str, str]:
    """Return the variables that a command's first word sets in a launch: the mode, and which old names it sees."""
    if not command or command[0] == "python-pt":
        return {}
    mode = execution_mode(command)
    roots = ["launched", "wheel", "cbcore", *(["ws"] if mode == env.WEIGHT_STREAMING else [])]
    return {**({} if mode is None else {env.EXECUTION_MODE: mode}), "PYTHONPATH": _python_path(roots)}


def for_own_modules() -> dict[str, str]:
    """Return this process's environment for `python -m csrun...`, which finds us installed or run from a checkout."""
    root = str(Path(__file__).parents[1])
    path = os.pathsep.join(dict.fromkeys(filter(None, [*os.environ.get("PYTHONPATH", "").split(os.pathsep), root])))
    return {**os.environ, "PYTHONPATH": path}


def _python_path(roots: Sequence[str]) -> str:
    """Return PYTHONPATH with folders of old names in front; compat/names.py says what each one holds."""
    package = Path(config.__file__).parents[1]
    ours = [str(package / "compat" / "roots" / root) for root in roots]
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    # An installed package is found anyway, and site-packages on PYTHONPATH would come before the standard library.
    checkout = "" if package.parent.name.endswith("-packages") else str(package.parent)
    return os.pathsep.join(dict.fromkeys(filter(None, [*ours, *given, checkout])))


def python_ws() -> NoReturn:
    """Become this Python in weight-streaming mode, with all arguments passed on."""
    command = ("python-ws", *sys.argv[1:])
    path = _python_path(["launched", "wheel", "ws"])
    environ = {**os.environ, env.EXECUTION_MODE: env.WEIGHT_STREAMING, "PYTHONPATH": path}
    os.execve(sys.executable, resolved(command), environ)
