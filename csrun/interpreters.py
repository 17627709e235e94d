"""What `python`, `python-ws` and `python-pt` mean inside a launch: this Python, in an execution mode."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NoReturn

from cerebras_tensorflow import config
from cerebras_tensorflow.config import env
from cerebras_tensorflow.text import did_you_mean, did_you_mean_file
from cerebras_tensorflow.version import __version__
from csrun import process

NO_SCRIPT = 2
"""Python's exit code when it cannot open the script, and that of a script with a wrong argument."""

COMMANDS = {"convert_checkpoint.py": "convert_checkpoint"}
"""Scripts of the Model Zoo that are commands here."""

MODES: Mapping[str, str | None] = {
    "python": env.PIPELINED,
    "python3": env.PIPELINED,
    "python-tf": env.PIPELINED,
    "python-ws": env.WEIGHT_STREAMING,
    "python-pt": None,
}
"""Execution mode by the command's first word. None: PyTorch, which has no mode here."""


SCRIPT_MODES = ("train", "eval", "eval_all", "train_and_eval", "predict", "infer")
"""What `--mode` of the reference models and of the Model Zoo's scripts may say."""

_MODE_OPTIONS = ("--mode", "-m")
_MOST_MODULES = 50
_REFERENCE_MODELS = "reference_implementations"
# What the script of a reference model consists of; one with anything else does work of its own when it runs.
_DECLARATIONS = (ast.Expr, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.If)
_IMPORTED = ("__future__", "pathlib", "sys", _REFERENCE_MODELS)
_CALLED = ("ReferenceModel", "run", "exit", "append", "insert", "str", "Path", "resolve")
_CHECK_S = 20


def execution_mode(command: Sequence[str]) -> str | None:
    """Return the mode that a command's first word chooses; None if it chooses none.

    >>> execution_mode(["python-ws", "run.py"]), execution_mode(["bash", "train.sh"])
    ('weight_streaming', None)
    """
    return MODES.get(command[0]) if command else None


def resolved(command: Sequence[str]) -> tuple[str, ...]:
    """Return the command with `python` and its variants replaced by this Python."""
    if command and command[0] in MODES:
        return (sys.executable, *command[1:])
    return tuple(command)


def check_typed_right(command: Sequence[str], is_for_here: bool) -> None:
    """Check for mistyped words of a command before the launch waits in a queue: the program, the script, its options.

    Args:
        command: The command. A name counts as mistyped if it does not exist but resembles one that does.
        is_for_here: Whether the command runs on this machine. Another machine may have other programs, so only our own
            names are checked for it.

    Raises:
        CommandError: If a word is mistyped, or a reference model refuses its params. The text suggests a name; the exit
            code is that of a shell or of Python.
    """
    if not command:
        return
    word, *arguments = command
    if word not in MODES and shutil.which(word) is None:
        known = [*MODES, *(_programs() if is_for_here and os.sep not in word else ())]
        if meant := did_you_mean(word, known, 0.75 if is_for_here else 0.84):
            raise process.CommandError(f"{word}: command not found{meant}", process.NOT_FOUND)
    script = Path(arguments[0]) if word in MODES and arguments else None
    if is_for_here and script is not None and script.suffix == ".py" and not script.exists():
        if script.name in COMMANDS:
            raise process.CommandError(
                f"{word}: there is no file {str(script)!r}. Here it is a command with the same arguments: "
                f"{COMMANDS[script.name]}",
                NO_SCRIPT,
            )
        if meant := did_you_mean_file(script, "*.py"):
            raise process.CommandError(f"{word}: there is no file {str(script)!r}{meant}", NO_SCRIPT)
    if script is not None and script.suffix == ".py" and script.exists():
        _check_mode_of_script(script, arguments[1:])
        _check_reference_model(script, command)


def _check_mode_of_script(script: Path, arguments: Sequence[str]) -> None:
    """Check for a mistyped `--mode`. A script may have modes of its own: the source of such a script has their names.

    Raises:
        CommandError: If the mode is unknown but resembles a known one, and no module beside the script mentions it.
    """
    mode = _option(arguments, _MODE_OPTIONS)
    if not mode or mode in SCRIPT_MODES or not (meant := did_you_mean(mode, SCRIPT_MODES, 0.8)):
        return
    modules = [script, *islice(script.parent.glob("*.py"), _MOST_MODULES)]
    with suppress(OSError):
        if not any(mode in path.read_text(encoding="utf-8", errors="replace") for path in modules):
            known = ", ".join(SCRIPT_MODES)
            raise process.CommandError(f"{script}: unknown mode {mode!r} (known: {known}){meant}", NO_SCRIPT)


def _check_reference_model(script: Path, command: Sequence[str]) -> None:
    """Let a reference model check its options and params. It does so without TensorFlow, in less than a second.

    A script that does work of its own is not run here, because the job runs it too.

    Raises:
        CommandError: If it refuses them; the text is its own.
    """
    with suppress(OSError, subprocess.TimeoutExpired):
        if not _only_declares_a_model(script.read_text(encoding="utf-8", errors="replace")):
            return
        done = subprocess.run(
            resolved(command),
            env={**os.environ, **environment(command), env.CHECK_ONLY: "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            timeout=_CHECK_S,
        )
        # Any other failure may be one of this host alone, so the job reports it.
        if done.returncode == NO_SCRIPT:
            raise process.CommandError(done.stderr.strip(), NO_SCRIPT)


def _only_declares_a_model(source: str) -> bool:
    """Return whether a script only declares a reference model and runs its command line, as run.py of ours do."""
    try:
        nodes = list(ast.walk(tree := ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    modules = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    modules += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    called = [node.func for node in nodes if isinstance(node, ast.Call)]
    names = [getattr(function, "attr", getattr(function, "id", "")) for function in called]
    return (
        f"{_REFERENCE_MODELS}.common.run" in modules
        and all(isinstance(statement, _DECLARATIONS) for statement in tree.body)
        and all(module.split(".")[0] in _IMPORTED for module in modules)
        and "run" in names
        and set(names) <= set(_CALLED)
    )


def _option(arguments: Sequence[str], names: Sequence[str]) -> str:
    """Return the value of an option, as `--mode train` or `--mode=train`; empty if it is not given."""
    for number, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name in names:
            return value if equals else "".join(arguments[number + 1 : number + 2])
    return ""


def _programs() -> Iterator[str]:
    for folder in os.get_exec_path():
        with suppress(OSError):
            yield from os.listdir(folder)


def environment(command: Sequence[str]) -> dict[str, str]:
    """Return the variables that a command's first word sets: the mode, and the path to the old module names."""
    if not command or command[0] == "python-pt":
        return {}
    mode = execution_mode(command)
    roots = ["launched", "wheel", "cbcore", *(["ws"] if mode == env.WEIGHT_STREAMING else [])]
    return {**({} if mode is None else {env.EXECUTION_MODE: mode}), "PYTHONPATH": _python_path(roots)}


def for_own_modules() -> dict[str, str]:
    """Return this process's environment for `python -m csrun...`; it finds csrun installed or in a checkout."""
    root = str(Path(__file__).parents[1])
    path = os.pathsep.join(dict.fromkeys(filter(None, [*os.environ.get("PYTHONPATH", "").split(os.pathsep), root])))
    return {**os.environ, "PYTHONPATH": path}


def _python_path(roots: Sequence[str]) -> str:
    """Return PYTHONPATH with the folders of old names in front; compat/names.py lists what each one holds."""
    package = Path(config.__file__).parents[1]
    ours = [str(package / "compat" / "roots" / root) for root in roots]
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    # An installed package needs no entry, and site-packages on PYTHONPATH would come before the standard library.
    checkout = "" if package.parent.name.endswith("-packages") else str(package.parent)
    return os.pathsep.join(dict.fromkeys(filter(None, [*ours, *given, checkout])))


def python_ws() -> NoReturn:
    """Become this Python in weight-streaming mode, with all arguments passed on."""
    if sys.argv[1:] == ["--version"]:
        print(f"python-ws {__version__}", flush=True)
    command = ("python-ws", *sys.argv[1:])
    path = _python_path(["launched", "wheel", "ws"])
    environ = {**os.environ, env.EXECUTION_MODE: env.WEIGHT_STREAMING, "PYTHONPATH": path}
    os.execve(sys.executable, resolved(command), environ)
