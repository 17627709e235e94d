"""The right writer for a checkpoint's name: `.h5` is HDF5, anything else the prefix of a TensorFlow checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable

from cerebras_tensorflow.saver.interface import TensorWriter
from cerebras_tensorflow.saver.names import H5_SUFFIX


def open_writer(
    path: str | os.PathLike[str], shard_of: Callable[[str, int], int] | None = None, compression: str = "none"
) -> TensorWriter:
    """Return a writer; leave it normally to commit, by an exception to leave nothing behind.

    Args:
        path: Final path or prefix. An existing checkpoint stays readable until the new one is complete.
        shard_of: File of a tensor, from its name and size [B]; one file by default.
        compression: none, lz4 or gzip; HDF5 only.

    Raises:
        ValueError: If a TensorFlow checkpoint is to be compressed.
        CheckpointError: If another process is writing this checkpoint, or the folder cannot be written.
    """
    # Each format's libraries are loaded only where it is asked for.
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
