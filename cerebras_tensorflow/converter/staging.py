"""Lets a conversion read and write object storage, through a temporary folder on this machine.

Hugging Face and torch read files, so their formats stay files in a bucket. HDF5 and TensorFlow checkpoints become
checkpoints in our object format, under the same names.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cerebras_tensorflow.converter.sharded import is_part
from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.locations import ObjectLocation, local_path, object_location
from cerebras_tensorflow.saver.bundle.format import INDEX_SUFFIX, parse_data_path
from cerebras_tensorflow.saver.checkpoint_reader import exists, open_checkpoint
from cerebras_tensorflow.saver.checkpoint_writer import open_writer
from cerebras_tensorflow.saver.convert import copy
from cerebras_tensorflow.saver.hdf5.format import H5_SIGNATURE
from cerebras_tensorflow.saver.objects.store import Bucket

_CONFIGS = (".json", ".yaml")


@dataclass(frozen=True)
class Staged:
    """The paths that a conversion works with.

    Attributes:
        checkpoint: A local path, or the URL of a checkpoint in our object format; empty if there is none.
        config: Local path of the config.
        output_dir: Local folder of the results; None: beside each input.
        target: Where the results go in the end; None: they stay in output_dir.
    """

    checkpoint: str
    config: str
    output_dir: str | None
    target: ObjectLocation | None

    def publish(self, *paths: str) -> tuple[str, ...]:
        """Write the results to the target; return where they are."""
        if self.target is None or self.output_dir is None:
            return paths
        _upload(self.output_dir, self.target)
        return tuple(f"{self.target}/{os.path.relpath(path, self.output_dir)}" for path in paths)


@contextmanager
def staged(checkpoint: str, config: str, output_dir: str | None) -> Iterator[Staged]:
    """Copy inputs that are in object storage to a temporary folder, except checkpoints in our object format.

    Args:
        checkpoint: Path or URL of the checkpoint; empty: only the config is converted.
        config: Path or URL of the config.
        output_dir: Folder or URL of the results; None: beside the inputs.

    Raises:
        CheckpointError: If an input does not exist or cannot be read.
        SettingsError: If one is a URL that we cannot read.
    """
    if output_dir is None and (object_location(config) is not None or object_location(checkpoint or ".") is not None):
        output_dir = os.path.dirname((checkpoint or config).rstrip("/"))
    target = object_location(output_dir) if output_dir is not None else None
    with tempfile.TemporaryDirectory(prefix="convert_checkpoint_") as folder:
        results = output_dir
        if target is not None:
            results = os.path.join(folder, "output")
            os.mkdir(results)
        yield Staged(
            _local(checkpoint, os.path.join(folder, "checkpoint")) if checkpoint else "",
            _local(config, os.path.join(folder, "config")),
            results,
            target,
        )


def _local(path: str, folder: str) -> str:
    """Return the path of a local copy; the path itself if it needs none."""
    location = object_location(path)
    if location is None:
        return local_path(path)
    url = str(location)
    if exists(url):
        return url
    bucket = Bucket(location)
    parent, _, name = location.key.rpartition("/")
    beside = [item for item in bucket.children(parent)[1] if is_part(name, item)]
    if beside:
        for item in beside:
            _download(bucket, f"{parent}/{item}".lstrip("/"), os.path.join(folder, item))
        return os.path.join(folder, name)
    below = bucket.children(location.key)[1]
    if "checkpoint" in below:
        return url  # a model_dir: its newest checkpoint
    if not below:
        raise CheckpointError(f"{url}: there is no such object. Check the URL.")
    for item in below:
        _download(bucket, f"{location.key}/{item}", os.path.join(folder, name, item))
    return os.path.join(folder, name)


def _download(bucket: Bucket, key: str, path: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    bucket.get_file(key, path)


def _upload(folder: str, target: ObjectLocation) -> None:
    """Write the files of a folder to object storage, configs and indices last: they say that the rest is there."""
    found = [os.path.relpath(os.path.join(base, name), folder) for base, _, names in os.walk(folder) for name in names]
    bucket = Bucket(target)
    for name in sorted(found, key=lambda name: (name.endswith(_CONFIGS), name)):
        path = os.path.join(folder, name)
        prefix = path.removesuffix(INDEX_SUFFIX)
        if prefix != path or _is_hdf5(path):
            with (
                open_checkpoint(prefix) as reader,
                open_writer(f"{target}/{name.removesuffix(INDEX_SUFFIX)}") as writer,
            ):
                copy(reader, writer)
        elif not _is_data_of_bundle(path):
            bucket.put_file(f"{target.key}/{name}".lstrip("/"), path)


def _is_data_of_bundle(path: str) -> bool:
    """Whether a file belongs to a TensorFlow checkpoint, whose `.index` stands for all of its files."""
    parsed = parse_data_path(path)
    return parsed is not None and os.path.isfile(parsed[0] + INDEX_SUFFIX)


def _is_hdf5(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(len(H5_SIGNATURE)) == H5_SIGNATURE
