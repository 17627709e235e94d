"""The `checkpoint` file of a model_dir, a text proto as TensorFlow's: the newest checkpoint and those kept."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from cerebras_tensorflow.errors import CorruptCheckpointError
from cerebras_tensorflow.saver.files.atomic import write_file

STATE_NAME = "checkpoint"

_LINE = re.compile(
    r"""\s*(?P<field>\w+)\s*:\s*
    (?: "(?P<double>(?:[^"\\]|\\.)*)" | '(?P<single>(?:[^'\\]|\\.)*)' | (?P<number>[-+.\w]+) )
    \s*[;,]?""",
    re.VERBOSE,
)
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{1,2})|(.))", re.DOTALL)
_SIMPLE_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}


@dataclass(frozen=True)
class CheckpointState:
    """What the state file says, with full paths.

    Attributes:
        model_checkpoint_path: The newest checkpoint.
        all_model_checkpoint_paths: Those under retention, oldest first; the newest is among them.
        all_model_checkpoint_timestamps: When each was saved [s since 1970].
        last_preserved_timestamp: When the newest of those kept for good was saved [s since 1970]; None at first.
    """

    model_checkpoint_path: str
    all_model_checkpoint_paths: tuple[str, ...] = ()
    all_model_checkpoint_timestamps: tuple[float, ...] = ()
    last_preserved_timestamp: float | None = None


def read_state(model_dir: str | os.PathLike[str]) -> CheckpointState | None:
    """Return the state of a model_dir, or None where there is none. Unknown fields are skipped.

    Raises:
        CorruptCheckpointError: If the file is not a checkpoint state.
    """
    folder = os.fspath(model_dir)
    path = os.path.join(folder, STATE_NAME)
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            text = file.read()
    except FileNotFoundError:
        return None
    newest = ""
    kept: list[str] = []
    timestamps: list[float] = []
    preserved: float | None = None
    position = 0
    while text[position:].strip():
        match = _LINE.match(text, position)
        if match is None:
            raise CorruptCheckpointError(
                f"{path}: not a checkpoint state: {text[position:].strip()[:60]!r}. Remove it to fall back to the "
                "checkpoints in the folder."
            )
        position = match.end()
        field = match["field"]
        try:
            if field == "model_checkpoint_path":
                newest = _path_of(folder, match)
            elif field == "all_model_checkpoint_paths":
                kept.append(_path_of(folder, match))
            elif field == "all_model_checkpoint_timestamps":
                timestamps.append(float(match["number"]))
            elif field == "last_preserved_timestamp":
                preserved = float(match["number"])
        except (TypeError, ValueError) as exc:
            raise CorruptCheckpointError(f"{path}: bad value of {field}: {match[0].strip()!r}") from exc
    if not newest:
        return None
    return CheckpointState(newest, tuple(kept), tuple(timestamps), preserved)


def write_state(model_dir: str | os.PathLike[str], state: CheckpointState) -> None:
    """Replace the state of a model_dir in one step. Paths inside the folder are written relative to it.

    Raises:
        CheckpointError: If it cannot be written.
    """
    folder = os.path.abspath(model_dir)
    lines = [f"model_checkpoint_path: {_quoted(folder, state.model_checkpoint_path)}"]
    lines += [f"all_model_checkpoint_paths: {_quoted(folder, path)}" for path in state.all_model_checkpoint_paths]
    lines += [f"all_model_checkpoint_timestamps: {stamp!r}" for stamp in state.all_model_checkpoint_timestamps]
    if state.last_preserved_timestamp is not None:
        lines.append(f"last_preserved_timestamp: {state.last_preserved_timestamp!r}")
    write_file(os.path.join(folder, STATE_NAME), ("\n".join(lines) + "\n").encode())


def _quoted(folder: str, path: str) -> str:
    path = os.path.abspath(os.path.join(folder, path))
    relative = os.path.relpath(path, folder)
    raw = os.fsencode(path if relative.startswith("..") else relative)
    return '"' + "".join(_escaped(byte) for byte in raw) + '"'


def _escaped(byte: int) -> str:
    if byte in b'"\\':
        return "\\" + chr(byte)
    return chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}"


def _path_of(folder: str, match: re.Match[str]) -> str:
    quoted = match["double"] if match["double"] is not None else match["single"]
    if quoted is None:
        raise ValueError("not a string")
    raw = _ESCAPE.sub(_unescaped, quoted.encode("utf-8", "surrogateescape"))
    return os.path.join(folder, os.fsdecode(raw))


def _unescaped(match: re.Match[bytes]) -> bytes:
    octal, hexadecimal, simple = match.groups()
    if octal is not None:
        return bytes([int(octal, 8) & 0xFF])
    if hexadecimal is not None:
        return bytes([int(hexadecimal, 16)])
    return _SIMPLE_ESCAPES.get(simple, simple)
