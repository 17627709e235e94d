"""Checking a checkpoint for damage. A process reads the same files only once."""

from __future__ import annotations

import os
from typing import TypeAlias

from cerebras_tensorflow.errors import CheckpointError, CorruptCheckpointError
from cerebras_tensorflow.locations import object_location
from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint
from cerebras_tensorflow.saver.names import files_of
from cerebras_tensorflow.saver.objects.reader import NoManifestError
from cerebras_tensorflow.saver.objects.writer import version_of

_Identity: TypeAlias = tuple[tuple[object, ...], ...]

_known: dict[_Identity, str | None] = {}


def find_damage(path: str | os.PathLike[str]) -> str | None:
    """Return what is wrong with a checkpoint; None if it is complete and every checksum is right.

    Call it when a run chooses its first checkpoint, before the run uses the step.

    Raises:
        CheckpointError: If the bucket of a URL cannot be read: a run must not start anew because of that.
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
        if object_location(path) is not None and not isinstance(error, (CorruptCheckpointError, NoManifestError)):
            raise
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
    location = object_location(path)
    if location is not None:
        version = version_of(location)
        return ((path, *sorted(version.items())),) if version else ()
    facts = []
    for file in files_of(path):
        try:
            status = os.stat(file)
        except FileNotFoundError:
            continue
        facts.append((os.path.realpath(file), status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(facts)
