"""Opening a checkpoint of any kind, and finding the checkpoints of a model_dir."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from cerebras_tensorflow.errors import CheckpointError, CorruptCheckpointError
from cerebras_tensorflow.locations import ObjectLocation, local_path, object_location
from cerebras_tensorflow.saver.bundle.format import INDEX_SUFFIX
from cerebras_tensorflow.saver.bundle.reader import BundleReader
from cerebras_tensorflow.saver.hdf5 import reader as h5_reader
from cerebras_tensorflow.saver.hdf5 import update as h5_update
from cerebras_tensorflow.saver.hdf5.format import H5_SIGNATURE
from cerebras_tensorflow.saver.interface import TensorReader
from cerebras_tensorflow.saver.model_dir.ckpt_info import checkpoints_listed
from cerebras_tensorflow.saver.model_dir.state import read_state
from cerebras_tensorflow.saver.names import H5_SUFFIX, checkpoints_in, files_of, step_of
from cerebras_tensorflow.saver.safetensors_file import SAFETENSORS_SUFFIX, SafetensorsReader


def open_checkpoint(path: str | os.PathLike[str], accept_changed: bool = False) -> TensorReader:
    """Return the reader for a checkpoint of any kind.

    Args:
        path: A TensorFlow prefix or its `.index` file, an HDF5 or safetensors file, or a folder with a `checkpoint`
            state file (its newest checkpoint is opened); or the URL of a checkpoint or a model_dir in object storage.
        accept_changed: Also read one of our HDF5 files that has lost its index; without checksums.

    Raises:
        CheckpointError: If the path does not exist, or is of a kind that we do not read.
        CorruptCheckpointError: If it is damaged.
    """
    location = object_location(path)
    if location is not None:
        return _open_object(location)
    path = _resolve(local_path(path))
    if not os.path.isfile(path):
        if path.endswith((H5_SUFFIX, SAFETENSORS_SUFFIX)) and not os.path.lexists(path + INDEX_SUFFIX):
            raise CheckpointError(f"{path}: no such file. Check the path.")
        return BundleReader(path)
    if _is_hdf5(path):
        h5_update.recover(path)
        index = h5_reader.read_index(path)
        if index is not None:
            return h5_reader.H5Reader(path, index)
        # Imported here because h5py is slow to load.
        from cerebras_tensorflow.saver.hdf5.foreign import ForeignH5Reader

        return ForeignH5Reader(path, accept_changed)
    if path.endswith(SAFETENSORS_SUFFIX):
        return SafetensorsReader(path)
    raise CheckpointError(
        f"{path}: not a checkpoint: neither HDF5 nor safetensors nor the prefix of a TensorFlow checkpoint. For a "
        "TensorFlow checkpoint, give the path without .index or .data-...."
    )


def _open_object(location: ObjectLocation) -> TensorReader:
    from cerebras_tensorflow.saver.objects.reader import NoManifestError, ObjectReader

    try:
        return ObjectReader(location)
    except NoManifestError:
        state = read_state(str(location))
        newest = None if state is None else object_location(state.model_checkpoint_path)
        if newest is None:
            raise
    return ObjectReader(newest)


def _resolve(path: str) -> str:
    """Return the file or prefix to open for a path."""
    if os.path.isdir(path):
        state = read_state(path)
        if state is None:
            found = checkpoints_in(path)
            hint = f"Give the checkpoint itself, as in {found[0]}." if found else "It has no checkpoints either."
            raise CheckpointError(f"{path}: a folder without a `checkpoint` state file. {hint}")
        return state.model_checkpoint_path
    if path.endswith(INDEX_SUFFIX) and os.path.isfile(path):
        return path.removesuffix(INDEX_SUFFIX)
    return path


def _is_hdf5(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            # The signature may follow a user block of 512, 1024, ... bytes.
            for offset in (0, 512, 1024, 2048, 4096):
                file.seek(offset)
                if file.read(len(H5_SIGNATURE)) == H5_SIGNATURE:
                    return True
    except OSError as exc:
        raise CheckpointError(f"{path}: cannot be opened: {exc.strerror}. Check the path.") from exc
    return False


def checkpoints_newest_first(model_dir: str | os.PathLike[str]) -> list[str]:
    """Return the checkpoints of a model_dir, newest first: from the state file, then from `ckpt_info`, then by step.

    They may be incomplete: check with `is_complete`. A damaged state file counts as absent.

    Raises:
        CheckpointError: If model_dir is a URL that cannot be read.
    """
    location = object_location(model_dir)
    folder = local_path(model_dir) if location is None else str(location)
    if location is None and not os.path.isdir(folder):
        return []
    try:
        state = read_state(folder)
    except CorruptCheckpointError:
        state = None
    listed: list[str] = []
    if state is not None:
        listed = [state.model_checkpoint_path, *reversed(state.all_model_checkpoint_paths)]
    if location is not None:
        return list(dict.fromkeys([*listed, *_in_object_storage(location)]))
    known: dict[str, str] = {}
    for path in (*listed, *reversed(checkpoints_listed(folder)), *checkpoints_in(folder)):
        known.setdefault(os.path.abspath(path), path)
    return list(known.values())


def _in_object_storage(location: ObjectLocation) -> list[str]:
    from cerebras_tensorflow.saver.model_dir import remote

    return remote.checkpoints_in(location)


def exists(path: str) -> bool:
    """Whether there is a checkpoint, complete or not, with this name."""
    location = object_location(path)
    if location is None:
        return bool(files_of(path))
    from cerebras_tensorflow.saver.objects import writer

    return writer.exists(location)


def is_complete(path: str | os.PathLike[str]) -> bool:
    """Whether a checkpoint's index is readable and every file is long enough for its tensors. Reads no values."""
    try:
        with open_checkpoint(path) as reader:
            reader.check_complete()
    except CheckpointError:
        return False
    return True


class CheckpointReader:
    """The class with which scripts of release 1.8 find and read the checkpoints of a model_dir."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._reader = open_checkpoint(path)

    @staticmethod
    def all_checkpoints(model_dir: str | os.PathLike[str]) -> list[str]:
        """Return the complete checkpoints of a model_dir, oldest first; an empty list if there are none."""
        return [path for path in reversed(checkpoints_newest_first(model_dir)) if is_complete(path)]

    @staticmethod
    def is_a_checkpoint(path: str | os.PathLike[str]) -> bool:
        """Whether a path is a complete checkpoint of a kind that we read."""
        return is_complete(path) if object_location(path) else not os.path.isdir(local_path(path)) and is_complete(path)

    def get_variable_to_shape_map(self) -> dict[str, list[int]]:
        """Return the shape of every tensor, as tf.train.load_checkpoint's reader does."""
        return {name: list(self._reader.entry(name).shape) for name in self._reader.names()}

    def get_variable_to_dtype_map(self) -> dict[str, np.dtype[Any]]:
        """Return the NumPy type of every tensor."""
        return {name: self._reader.entry(name).dtype for name in self._reader.names()}

    def has_tensor(self, name: str) -> bool:
        """Whether a tensor of that name is stored."""
        return name in self._reader

    def get_tensor(self, name: str) -> np.ndarray[Any, Any]:
        """Return the value of a tensor."""
        return self._reader.read(name)


__all__ = ["CheckpointReader", "checkpoints_newest_first", "is_complete", "open_checkpoint", "step_of"]
