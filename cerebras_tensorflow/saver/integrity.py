"""Whether a checkpoint is undamaged. Its files are read through once in a process, as long as they stay the same."""

from __future__ import annotations

import os
from typing import TypeAlias

from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint
from cerebras_tensorflow.saver.names import files_of

_Identity: TypeAlias = tuple[tuple[str, int, int, int], ...]

_known: dict[_Identity, str | None] = {}


def find_damage(path: str | os.PathLike[str]) -> str | None:
    """Return what is wrong with a checkpoint, or None: then it is complete and every checksum fits.

    Whoever chooses the checkpoint that a run starts from asks here, before anything else is derived from its step.
    """
    path = os.fspath(path)
    identity = _identity(path)
    if identity and identity in _known:
        return _known[identity]
    found: str | None = None
    try:
        with open_checkpoint(path) as reader:
            reader.check_complete()
            reader.verify()
    except CheckpointError as error:
        found = str(error)
    # Opening may have finished an update that was cut short, so the files are looked at again.
    _known[_identity(path)] = found
    return found


def trust(path: str | os.PathLike[str]) -> None:
    """Take a checkpoint for undamaged as long as its files stay the same: this process has just written it."""
    identity = _identity(os.fspath(path))
    if identity:
        _known[identity] = None


def _identity(path: str) -> _Identity:
    found = []
    for file in files_of(path):
        try:
            status = os.stat(file)
        except FileNotFoundError:
            continue
        found.append((os.path.realpath(file), status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(found)
