"""Checks of the arguments of train, evaluate and predict, before anything runs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from cerebras_tensorflow.errors import SettingsError


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
            raise TypeError(f"All saving_listeners must be `CheckpointSaverListener` instances, given: {listener}")


def make_model_dir(path: str) -> None:
    """Make the folder of a run.

    Raises:
        SettingsError: If it cannot be written.
    """
    try:
        os.makedirs(path, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise SettingsError(f"model_dir {path} cannot be written ({error}). Choose another with model_dir.") from error
