"""Lets tf.train find checkpoints in object storage, and read them and HDF5 checkpoints. TensorFlow itself cannot."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from cerebras_tensorflow.locations import local_path, object_location

_MARK = "_reads_object_storage"


def restore(train: ModuleType) -> None:
    """Wrap the functions of tf.train or tf.compat.v1.train that take a checkpoint or its folder."""
    for name, ours in _FOR_URLS.items():
        theirs = getattr(train, name, None)
        if theirs is not None and not getattr(theirs, _MARK, False):
            both = _either(theirs, ours)
            setattr(both, _MARK, True)
            setattr(train, name, both)


def _either(theirs: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(theirs)
    def function(*positional: Any, **named: Any) -> Any:
        place = next(iter((*positional, *named.values())), None)
        if not place or not (isinstance(place, (str, bytes)) or hasattr(place, "__fspath__")):
            return theirs(*positional, **named)
        if object_location(place) is not None or (ours in _READERS and _is_hdf5(os.fsdecode(place))):
            return ours(*positional, **named)
        _check_scheme(place)
        return theirs(*positional, **named)

    return function


def _check_scheme(place: Any) -> None:
    """Check that we or TensorFlow can read a URL. TensorFlow itself finds no checkpoint there, and only logs that.

    Raises:
        SettingsError: If neither can.
    """
    scheme, separator, _ = os.fsdecode(place).partition("://")
    if separator:
        import tensorflow as tf

        if scheme not in tf.io.gfile.get_registered_schemes():
            local_path(place)


def _is_hdf5(place: str) -> bool:
    """Whether a path names an HDF5 checkpoint, or a folder whose newest checkpoint is one."""
    from cerebras_tensorflow.saver.bundle.format import INDEX_SUFFIX
    from cerebras_tensorflow.saver.model_dir.state import read_state
    from cerebras_tensorflow.saver.names import H5_SUFFIX

    if os.path.isdir(place):
        state = read_state(place)
        return state is not None and state.model_checkpoint_path.endswith(H5_SUFFIX)
    return place.endswith(H5_SUFFIX) and not os.path.exists(place + INDEX_SUFFIX)


def _latest_checkpoint(checkpoint_dir: Any, latest_filename: str | None = None) -> str | None:
    from cerebras_tensorflow.saver.checkpoint_reader import exists
    from cerebras_tensorflow.saver.model_dir.state import STATE_NAME, read_state

    if latest_filename not in (None, STATE_NAME):
        return None  # no run writes another one into a bucket
    state = read_state(checkpoint_dir)
    return state.model_checkpoint_path if state is not None and exists(state.model_checkpoint_path) else None


def _checkpoint_exists(checkpoint_prefix: Any) -> bool:
    from cerebras_tensorflow.saver.checkpoint_reader import exists

    return exists(checkpoint_prefix)


def _load_checkpoint(ckpt_dir_or_file: Any) -> Any:
    from cerebras_tensorflow.saver.checkpoint_reader import CheckpointReader

    return CheckpointReader(ckpt_dir_or_file)


def _load_variable(ckpt_dir_or_file: Any, name: str) -> Any:
    from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint

    with open_checkpoint(ckpt_dir_or_file) as reader:
        return reader.read(name.removesuffix(":0"))[()]  # rank 0: a scalar, as TensorFlow's


def _list_variables(ckpt_dir_or_file: Any) -> list[tuple[str, list[int]]]:
    from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint

    with open_checkpoint(ckpt_dir_or_file) as reader:
        return [(name, list(reader.entry(name).shape)) for name in sorted(reader.names())]


_READERS = (_load_checkpoint, _load_variable, _list_variables)
_FOR_URLS: dict[str, Callable[..., Any]] = {
    "latest_checkpoint": _latest_checkpoint,
    "checkpoint_exists": _checkpoint_exists,
    "load_checkpoint": _load_checkpoint,
    "load_variable": _load_variable,
    "list_variables": _list_variables,
}
