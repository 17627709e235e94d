"""What `python`, `python-ws` and `python-pt` mean inside a launch: this Python, in an execution mode."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import NoReturn

from cerebras_tensorflow import config
from cerebras_tensorflow.config import env
from cerebras_tensorflow.text import did_you_mean, did_you_mean_file
from cerebras_tensorflow.version import __version__
from csrun import process
from csrun.options import Parsed, command_hint

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


@contextmanager
def hinted(parsed: Parsed) -> Iterator[None]:
    """Add `command_hint` to the error of a command that was not found."""
    try:
        yield
    except process.CommandError as exc:
        hint = command_hint(parsed) if exc.exit_code in (process.NOT_FOUND, process.NOT_EXECUTABLE) else ""
        raise process.CommandError(f"{exc}{hint}", exc.exit_code) from exc


def check_command(command: Sequence[str], is_for_here: bool) -> None:
    """Check the words of a command before the launch waits in a queue: the program, the script, its options.

    Args:
        command: The command.
        is_for_here: Whether the command runs on this machine. Another machine may have other programs and files, so
            for it only words that resemble our own names, and numbers, are refused.

    Raises:
        CommandError: If the program or script does not exist, or a reference model refuses its params. The text
            suggests a name; the exit code is that of a shell or of Python.
    """
    if not command:
        return
    word, *arguments = command
    if word not in MODES:
        _check_program(word, is_for_here)
        return
    name, rest = _script(arguments)
    if name and not Path(name).exists() and is_for_here:
        meant = did_you_mean_file(name, "*.py")
        if command_of_ours := COMMANDS.get(Path(name).name):
            meant = f". Here it is a command with the same arguments: {command_of_ours}"
        raise process.CommandError(f"{word}: there is no file {name!r}{meant}", NO_SCRIPT)
    if name and Path(name).suffix == ".py" and Path(name).exists():
        _check_mode_of_script(Path(name), rest)
        _check_reference_model(Path(name), command)


def check_holds_no_prompt(command: Sequence[str]) -> None:
    """Refuse `python-ws` without a script at a terminal: its prompt would hold the system until the user leaves it.

    Raises:
        CommandError: If the command is that. `-i` asks for a prompt, so it is no error.
    """
    if command and command[0] in MODES and not command[1:] and os.isatty(0):
        raise process.CommandError(
            f"{command[0]}: there is no script, and a prompt would hold the system. Add a script. For a prompt without "
            f"a system: csrun_cpu {command[0]}",
            NO_SCRIPT,
        )


def _check_program(word: str, is_for_here: bool) -> None:
    if shutil.which(word) is not None:
        return
    if is_for_here and os.sep in word and Path(word).exists():
        raise process.CommandError(f"{word}: cannot be executed: it is no executable file", process.NOT_EXECUTABLE)
    known = [*MODES, *(_programs() if is_for_here and os.sep not in word else ())]
    meant = did_you_mean(word, known, 0.75 if is_for_here else 0.84)
    if meant or is_for_here or word.isdigit():
        raise process.CommandError(f"{word}: command not found{meant}", process.NOT_FOUND)


def _script(arguments: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return the script in Python's arguments, and the script's own arguments. Empty if Python reads none.

    >>> _script(["-u", "-W", "error", "run.py", "--mode", "train"]), _script(["-c", "1"])
    (('run.py', ['--mode', 'train']), ('', []))
    """
    words = list(arguments)
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option == "-" or option[:2] in ("-c", "-m", "--"):
            return "", []
        if option in ("-W", "-X"):
            words[:1] = []
    return (words[0], words[1:]) if words else ("", [])


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
            errors="replace",
            timeout=_CHECK_S,
        )
        # Any other failure may be one of this host alone, so the job reports it.
        if done.returncode == NO_SCRIPT:
            raise process.CommandError(done.stderr.strip().replace(": error: ", ": ", 1), NO_SCRIPT)


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
    if sys.argv[1:] in (["--help"], ["-h"]):
        print("usage: python-ws [OPTION ...] [-c CODE | -m MODULE | SCRIPT] [ARGUMENT ...]\n")
        print(
            "Run a script in weight-streaming mode: one layer on the wafer at a time. The options are Python's:",
            end="\n\n",
        )
        sys.stdout.flush()
    if sys.argv[1:] == ["--version"]:
        print(f"python-ws {__version__}", flush=True)
    command = ("python-ws", *sys.argv[1:])
    path = _python_path(["launched", "wheel", "ws"])
    environ = {**os.environ, env.EXECUTION_MODE: env.WEIGHT_STREAMING, "PYTHONPATH": path}
    os.execve(sys.executable, resolved(command), environ)
