"""Checks of the arguments of train, evaluate and predict, before anything runs."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from cerebras_tensorflow.errors import CorruptCheckpointError, SettingsError
from cerebras_tensorflow.locations import object_location
from cerebras_tensorflow.saver.model_dir import uploads
from cerebras_tensorflow.saver.model_dir.state import read_state
from cerebras_tensorflow.text import printable

EXPORT_FOLDER = "export"
"""Folder in a model_dir, with a folder for each exporter."""


def check_steps(**given: int | None) -> None:
    """Check that at most one number of steps is given, and that it is positive.

    >>> check_steps(steps=0)
    Traceback (most recent call last):
    ValueError: Must specify steps > 0, given: 0
    """
    values = {name: value for name, value in given.items() if value is not None}
    if len(values) > 1:
        raise ValueError(f"Can not provide both {' and '.join(values)}.")
    for name, value in values.items():
        if value <= 0:
            raise ValueError(f"Must specify {name} > 0, given: {value}")


def check_hooks(hooks: Sequence[Any] | None) -> None:
    """Raise a TypeError if one of the hooks is not a SessionRunHook."""
    for hook in hooks or ():
        if not isinstance(hook, tf.compat.v1.train.SessionRunHook):
            raise TypeError(f"Hooks must be a SessionRunHook, given: {hook}")


def check_listeners(listeners: Sequence[Any] | None) -> None:
    """Raise a TypeError if one of the listeners is not a CheckpointSaverListener."""
    for listener in listeners or ():
        if not isinstance(listener, tf.compat.v1.train.CheckpointSaverListener):
            raise TypeError(f"saving_listeners must be a list of CheckpointSaverListener, given: {listener}")


def check_training(
    steps: int | None, max_steps: int | None, hooks: Sequence[Any] | None, listeners: Sequence[Any] | None
) -> None:
    """Check the arguments of `train`. Errors are those of the other checks."""
    check_steps(steps=steps, max_steps=max_steps)
    check_hooks(hooks)
    check_listeners(listeners)


def make_model_dir(path: str) -> None:
    """Make the folder of a run; for a URL, check that the bucket can be read, and make the work folder.

    Raises:
        SettingsError: If the path is not UTF-8, the folder cannot be written, or a folder in it is a link that leads
            out of it.
        CheckpointError: If the bucket cannot be read.
    """
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise SettingsError(
            f"model_dir {printable(path)} is not UTF-8, which TensorFlow needs. Choose another with model_dir; a path "
            "from the current folder may do."
        ) from error
    try:
        folder = uploads.begin(path)
        with tempfile.TemporaryFile(dir=folder):
            _check_links(folder)
    except OSError as error:
        raise SettingsError(f"model_dir {path} cannot be written ({error}). Choose another with model_dir.") from error
    if object_location(path) is not None:
        with contextlib.suppress(CorruptCheckpointError):  # a run replaces a damaged one
            read_state(path)


def _check_links(folder: str) -> None:
    """Check that what a run writes is in its model_dir: it may come from somebody else.

    Raises:
        SettingsError: If a folder or event file is a link that leads out of it, or a pipe or device.
    """
    root = os.path.realpath(folder)
    names = [name for name in os.listdir(root) if uploads.is_written(name) or name == EXPORT_FOLDER]
    waiting, seen = [os.path.join(root, name) for name in names], set[str]()
    while waiting:
        path = waiting.pop()
        real, shown = os.path.realpath(path), f"model_dir {folder}: {os.path.relpath(path, root)}"
        if os.path.commonpath([root, real]) != root:
            raise SettingsError(
                f"{shown} is a link to {real}, and a run writes only inside its model_dir. Remove the link, or put a "
                "folder in its place."
            )
        if os.path.isdir(real):
            if real not in seen:
                seen.add(real)
                with contextlib.suppress(FileNotFoundError):  # another process of the run has removed it
                    waiting += [item.path for item in os.scandir(real) if not item.is_file(follow_symlinks=False)]
        elif os.path.exists(real) and not os.path.isfile(real):
            raise SettingsError(f"{shown} is neither a file nor a folder, and writing to it could block. Remove it.")
