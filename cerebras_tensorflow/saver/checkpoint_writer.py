"""The writer for a checkpoint's name: HDF5 for `.h5`; any other name is the prefix of a TensorFlow checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable

from cerebras_tensorflow.locations import object_location
from cerebras_tensorflow.saver.interface import TensorWriter
from cerebras_tensorflow.saver.names import H5_SUFFIX


def open_writer(
    path: str | os.PathLike[str], shard_of: Callable[[str, int], int] | None = None, compression: str = "none"
) -> TensorWriter:
    """Return a writer: a context manager that commits at its normal end, and leaves nothing behind on an exception.

    Args:
        path: Final path or prefix, or a URL in object storage. An existing checkpoint stays readable until the new one
            is complete.
        shard_of: Returns the shard of a tensor, from its name and size [B]; one file by default.
        compression: none, lz4 or gzip; HDF5 only.

    Raises:
        ValueError: If compression is requested for a TensorFlow checkpoint, or compression or shards for object
            storage.
        CheckpointError: If another process is writing this checkpoint, or the folder cannot be written.
    """
    location = object_location(path)
    if location is not None:
        from cerebras_tensorflow.saver.objects.writer import ObjectWriter

        if compression != "none" or shard_of is not None:
            raise ValueError(
                f"{location}: compression, shard size and layout are for files; in object storage, a checkpoint is not "
                "compressed, and the writer chooses the sizes of its objects"
            )
        return ObjectWriter(location)
    # Imported here so that only the chosen format's libraries are loaded.
    if not os.fspath(path).endswith(H5_SUFFIX):
        from cerebras_tensorflow.saver.bundle.writer import BundleWriter

        if compression != "none":
            raise ValueError(
                f"{os.fspath(path)}: a TensorFlow checkpoint has no compression; give a name ending in .h5"
            )
        return BundleWriter(path, shard_of)
    if shard_of is None:
        from cerebras_tensorflow.saver.hdf5.writer import H5Writer

        return H5Writer(path, compression)
    from cerebras_tensorflow.saver.hdf5.sharded import ShardedH5Writer

    return ShardedH5Writer(path, shard_of, compression)
