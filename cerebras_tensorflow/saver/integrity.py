"""Whether a checkpoint is undamaged. Each process reads its files once, unless they change."""

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

    Call it when choosing the checkpoint that a run starts from, before using its step.
    """
    path = os.fspath(path)
    identity = _identity(path)
    if identity and identity in _known:
        return _known[identity]
    problem: str | None = None
    try:
        with open_checkpoint(path) as reader:
            reader.check_complete()
            reader.verify()
    except CheckpointError as error:
        problem = str(error)
    # Opening may have finished an update that was cut short, so the files are looked at again.
    _known[_identity(path)] = problem
    return problem


def trust(path: str | os.PathLike[str]) -> None:
    """Treat a checkpoint as undamaged while its files stay the same: this process has just written it."""
    identity = _identity(os.fspath(path))
    if identity:
        _known[identity] = None


def _identity(path: str) -> _Identity:
    facts = []
    for file in files_of(path):
        try:
            status = os.stat(file)
        except FileNotFoundError:
            continue
        facts.append((os.path.realpath(file), status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(facts)
