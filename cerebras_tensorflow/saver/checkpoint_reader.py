"""Opening a checkpoint of any kind, and finding those of a model_dir."""

from __future__ import annotations

import os

from cerebras_tensorflow.errors import CheckpointError, CorruptCheckpointError
from cerebras_tensorflow.saver.bundle_format import INDEX_SUFFIX
from cerebras_tensorflow.saver.checkpoint_names import checkpoints_in, step_of
from cerebras_tensorflow.saver.checkpoint_state import read_state
from cerebras_tensorflow.saver.interface import TensorReader
from cerebras_tensorflow.saver.tensor_bundle import BundleReader


def open_checkpoint(path: str | os.PathLike[str]) -> TensorReader:
    """Return the reader for a checkpoint.

    Args:
        path: A prefix, an `.index` file, or a folder with a `checkpoint` state file.

    Raises:
        CheckpointError: If nothing is there, or it is of no kind that we read.
        CorruptCheckpointError: If it is damaged.
    """
    path = os.fspath(path)
    if os.path.isdir(path):
        state = read_state(path)
        if state is None:
            raise CheckpointError(
                f"{path}: a folder without a `checkpoint` state file. Give the checkpoint itself, as in "
                f"{os.path.join(path, 'model.ckpt-100')}."
            )
        path = state.model_checkpoint_path
    return BundleReader(path.removesuffix(INDEX_SUFFIX))


def checkpoints_newest_first(model_dir: str | os.PathLike[str]) -> list[str]:
    """Return the checkpoints of a model_dir: the state file's, newest first, then others there by falling step.

    They need not be complete (`is_complete` tells); a damaged state file counts as absent.
    """
    folder = os.fspath(model_dir)
    if not os.path.isdir(folder):
        return []
    try:
        state = read_state(folder)
    except CorruptCheckpointError:
        state = None
    listed: list[str] = []
    if state is not None:
        listed = [state.model_checkpoint_path, *reversed(state.all_model_checkpoint_paths)]
    paths = [*listed, *checkpoints_in(folder)]
    known: dict[str, str] = {}
    for path in paths:
        known.setdefault(os.path.abspath(path), path)
    return list(known.values())


def is_complete(path: str | os.PathLike[str]) -> bool:
    """Whether a checkpoint is whole: its index readable and every file as long as its tensors need. Reads no values."""
    try:
        with open_checkpoint(path) as reader:
            reader.check_complete()
    except CheckpointError:
        return False
    return True


__all__ = ["checkpoints_newest_first", "is_complete", "open_checkpoint", "step_of"]
