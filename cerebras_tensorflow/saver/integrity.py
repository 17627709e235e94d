"""Checking a checkpoint for damage. A process reads the same files only once."""

from __future__ import annotations

import os
from typing import TypeAlias

from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint
from cerebras_tensorflow.saver.names import files_of

_Identity: TypeAlias = tuple[tuple[str, int, int, int], ...]

_known: dict[_Identity, str | None] = {}


def find_damage(path: str | os.PathLike[str]) -> str | None:
    """Return what is wrong with a checkpoint; None if it is complete and every checksum is right.

    Call it when a run chooses its first checkpoint, before the run uses the step.
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
    # Opening may have finished an interrupted update and so changed the files: take their identity again.
    _known[_identity(path)] = problem
    return problem


def trust(path: str | os.PathLike[str]) -> None:
    """Treat a checkpoint that this process has just written as undamaged, until its files change."""
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
