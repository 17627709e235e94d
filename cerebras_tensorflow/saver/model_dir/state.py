"""The `checkpoint` file of a model_dir, a text proto as in TensorFlow: the newest checkpoint and the kept ones."""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from cerebras_tensorflow import files
from cerebras_tensorflow.errors import CorruptCheckpointError
from cerebras_tensorflow.locations import object_location
from cerebras_tensorflow.saver.files.atomic import write_file
from cerebras_tensorflow.saver.names import files_of

logger = logging.getLogger(__name__)

STATE_NAME = "checkpoint"

_MAX_STATE_BYTES = 8 << 20  # parsed in some 3 s
_ADVICE = "Remove it to fall back to the checkpoints in the folder."
_REST = re.compile(r"\s*\Z")

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
    """The content of the state file, with full paths.

    Attributes:
        model_checkpoint_path: The newest checkpoint.
        all_model_checkpoint_paths: The checkpoints under retention, oldest first, including the newest.
        all_model_checkpoint_timestamps: When each was saved [s since 1970].
        last_preserved_timestamp: When the last checkpoint kept for good was saved [s since 1970]; None at first.
    """

    model_checkpoint_path: str
    all_model_checkpoint_paths: tuple[str, ...] = ()
    all_model_checkpoint_timestamps: tuple[float, ...] = ()
    last_preserved_timestamp: float | None = None


def read_state(model_dir: str | os.PathLike[str]) -> CheckpointState | None:
    """Return the state of a model_dir, a folder or a URL; None if it has none. Unknown fields are skipped.

    All returned paths are inside model_dir; see `_within`.

    Raises:
        CorruptCheckpointError: If the file is not a checkpoint state.
    """
    location = object_location(model_dir)
    if location is not None:
        from cerebras_tensorflow.saver.model_dir import remote

        return remote.read_state(location)
    folder = os.fspath(model_dir)
    path = os.path.join(folder, STATE_NAME)
    try:
        text = files.read_regular(path, _MAX_STATE_BYTES).decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise CorruptCheckpointError(
            f"{path}: cannot be read as a checkpoint state: {exc.strerror}. {_ADVICE}"
        ) from exc
    return _within(folder, parse(path, text))


def parse(path: str, text: str) -> CheckpointState:
    """Return the content of a state file, its paths unchanged; the newest path is empty if the file has none."""
    newest = ""
    kept: list[str] = []
    timestamps: list[float] = []
    preserved: float | None = None
    position = 0
    while _REST.match(text, position) is None:
        line = _LINE.match(text, position)
        if line is None:
            start = text[position : position + 200].strip()[:60]
            raise CorruptCheckpointError(f"{path}: not a checkpoint state: {start!r}. {_ADVICE}")
        position = line.end()
        field = line["field"]
        try:
            match field:
                case "model_checkpoint_path":
                    newest = _path_of(line)
                case "all_model_checkpoint_paths":
                    kept.append(_path_of(line))
                case "all_model_checkpoint_timestamps":
                    timestamps.append(_time_of(line))
                case "last_preserved_timestamp":
                    preserved = _time_of(line)
        except (TypeError, ValueError) as exc:
            raise CorruptCheckpointError(f"{path}: bad value of {field}: {line[0].strip()[:200]!r}") from exc
    return CheckpointState(newest, tuple(kept), tuple(timestamps), preserved)


def _within(folder: str, state: CheckpointState) -> CheckpointState | None:
    """Return a state with all paths inside the folder, or None if it names no checkpoint there.

    A copied folder may still name the original one. So a path outside the folder is replaced by the checkpoint of the
    same name inside; if that does not exist, the path is ignored.
    """
    own_path = _Paths(folder)
    has_stamps = len(state.all_model_checkpoint_timestamps) == len(state.all_model_checkpoint_paths)
    kept: list[tuple[str, float]] = []
    for number, path in enumerate(state.all_model_checkpoint_paths):
        own = own_path(path)
        if own is not None:
            kept.append((own, state.all_model_checkpoint_timestamps[number] if has_stamps else 0.0))
    newest = own_path(state.model_checkpoint_path) if state.model_checkpoint_path else None
    if newest is None and state.model_checkpoint_path and kept:
        newest = kept[-1][0]
    if newest is None:
        return None
    stamps = tuple(stamp for _, stamp in kept) if has_stamps else ()
    return CheckpointState(newest, tuple(path for path, _ in kept), stamps, state.last_preserved_timestamp)


class _Paths:
    """Maps the paths in a state file to paths in its folder. A hostile file has a million of them."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._root = os.path.realpath(folder)
        self._real = cache(os.path.realpath)
        self._has_warned = False

    def __call__(self, path: str) -> str | None:
        """Return a path in the folder; None if there is none, with a warning for the first one."""
        full = os.path.join(self._folder, path)
        parent = self._real(os.path.dirname(full))
        if parent == self._root or parent.startswith(self._root.rstrip(os.sep) + os.sep):
            return full
        own = os.path.join(self._folder, os.path.basename(full))
        if os.path.basename(full) not in ("", ".", "..") and files_of(own):
            logger.debug("%s/%s names %s; using %s instead", self._folder, STATE_NAME, full, own)
            return own
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "%s/%s names %s, which is outside the folder; such paths are ignored", self._folder, STATE_NAME, full
            )
        return None


def write_state(model_dir: str | os.PathLike[str], state: CheckpointState) -> None:
    """Replace the state of a model_dir atomically. Paths inside the folder are written relative to it.

    Raises:
        CheckpointError: If it cannot be written.
    """
    folder = os.path.abspath(model_dir)
    write_file(os.path.join(folder, STATE_NAME), encode(state, lambda path: _stored(folder, path)))


def encode(state: CheckpointState, stored: Callable[[str], str]) -> bytes:
    """Return the content of a state file. stored(path) is what it holds for a path."""
    lines = [f"model_checkpoint_path: {_quoted(stored(state.model_checkpoint_path))}"]
    lines += [f"all_model_checkpoint_paths: {_quoted(stored(path))}" for path in state.all_model_checkpoint_paths]
    lines += [f"all_model_checkpoint_timestamps: {stamp!r}" for stamp in state.all_model_checkpoint_timestamps]
    if state.last_preserved_timestamp is not None:
        lines.append(f"last_preserved_timestamp: {state.last_preserved_timestamp!r}")
    return ("\n".join(lines) + "\n").encode()


def _stored(folder: str, path: str) -> str:
    path = os.path.abspath(os.path.join(folder, path))
    relative = os.path.relpath(path, folder)
    return path if relative.startswith("..") else relative


def _quoted(path: str) -> str:
    return '"' + "".join(_escaped(byte) for byte in os.fsencode(path)) + '"'


def _escaped(byte: int) -> str:
    if byte in b'"\\':
        return "\\" + chr(byte)
    return chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}"


def _path_of(match: re.Match[str]) -> str:
    quoted = match["double"] if match["double"] is not None else match["single"]
    if quoted is None:
        raise ValueError("not a string")
    raw = _ESCAPE.sub(_unescaped, quoted.encode("utf-8", "surrogateescape"))
    if b"\0" in raw:
        raise ValueError("a path with a NUL")
    return os.fsdecode(raw)


def _time_of(match: re.Match[str]) -> float:
    value = float(match["number"])
    if not math.isfinite(value):
        raise ValueError("not a time")
    return value


def _unescaped(match: re.Match[bytes]) -> bytes:
    octal, hexadecimal, simple = match.groups()
    if octal is not None:
        return bytes([int(octal, 8) & 0xFF])
    if hexadecimal is not None:
        return bytes([int(hexadecimal, 16)])
    return _SIMPLE_ESCAPES.get(simple, simple)
