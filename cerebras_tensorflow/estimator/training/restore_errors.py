"""Errors of checkpoints that a model cannot load. Each is also the error that TensorFlow raises."""

from __future__ import annotations

import tensorflow as tf

from cerebras_tensorflow.errors import CheckpointError

_FAILED = (  # the text of TensorFlow
    "Restoring from checkpoint failed. This is most likely due to a {}. Please ensure that you have not altered the "
    "graph expected based on the checkpoint. {}"
)


class MissingCheckpointError(CheckpointError, tf.errors.NotFoundError):
    """There is no checkpoint at a path. TensorFlow raises NotFoundError for it."""

    def __init__(self, path: str) -> None:
        text = (
            f"Unsuccessful TensorSliceReader constructor: Failed to find any matching files for {path}. Give the "
            "prefix, as in model_dir/model.ckpt-100, without .index or .data, an HDF5 file, or a model_dir."
        )
        tf.errors.NotFoundError.__init__(self, None, None, text)


class MissingVariableError(CheckpointError, tf.errors.NotFoundError):
    """A checkpoint lacks a variable of the model. TensorFlow raises NotFoundError for it."""

    def __init__(self, message: str) -> None:
        text = _FAILED.format("Variable name or other graph key that is missing from the checkpoint", message)
        tf.errors.NotFoundError.__init__(self, None, None, text)


class OtherShapeError(CheckpointError, tf.errors.InvalidArgumentError):
    """A checkpoint has a variable in another shape. TensorFlow raises InvalidArgumentError for it."""

    def __init__(self, message: str) -> None:
        text = _FAILED.format("mismatch between the current graph and the graph from the checkpoint", message)
        tf.errors.InvalidArgumentError.__init__(self, None, None, text)
