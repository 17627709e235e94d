"""Which checkpoints TensorFlow's own Saver reads: those in its format, on this machine's file systems."""

from __future__ import annotations

from cerebras_tensorflow.errors import SettingsError
from cerebras_tensorflow.locations import object_location
from cerebras_tensorflow.saver.bundle.reader import BundleReader
from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint


def check_folder(model_dir: str) -> None:
    """Check that TensorFlow can write to a model_dir.

    Raises:
        SettingsError: If it is in object storage.
    """
    if object_location(model_dir) is not None:
        raise SettingsError(
            f"model_dir {model_dir} is in object storage, but TensorFlow itself writes the files of a run of a cluster "
            "or a strategy. Choose a folder that all tasks see."
        )


def tensorflow_prefix(path: str) -> str:
    """Return the prefix of a checkpoint that TensorFlow is to read; for a folder, of the newest one in it.

    Raises:
        SettingsError: If it is in object storage, or not in TensorFlow's format.
        CheckpointError: If there is no checkpoint, or its index is damaged.
    """
    if object_location(path) is not None:
        raise SettingsError(
            f"{path} is in object storage, but runs of a cluster or a strategy read checkpoints of this machine's file "
            "systems. Copy it into a folder with h5-to-tensorflow."
        )
    with open_checkpoint(path) as reader:
        if not isinstance(reader, BundleReader):
            kind = "a safetensors file" if reader.path.endswith(".safetensors") else "an HDF5 checkpoint"
            raise SettingsError(
                f"{path} is {kind}, but runs of a cluster or a strategy read TensorFlow's format. Convert it with "
                "h5-to-tensorflow, or choose another."
            )
        return reader.path
