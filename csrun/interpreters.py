"""What `python`, `python-ws` and `python-pt` mean inside a launch: this Python, in an execution mode."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

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
    """Return the variables that a command's first word sets."""
    mode = execution_mode(command)
    return {} if mode is None else {env.EXECUTION_MODE: mode}


def python_ws() -> NoReturn:
    """Become this Python in weight-streaming mode, with all arguments passed on."""
    command = ("python-ws", *sys.argv[1:])
    os.execve(sys.executable, resolved(command), {**os.environ, **environment(command)})
