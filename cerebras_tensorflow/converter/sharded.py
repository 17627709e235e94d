"""Reading a checkpoint in several files as one."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from cerebras_tensorflow.converter.hf_folder import HEADS
from cerebras_tensorflow.converter.torch_file import TorchReader, is_torch_file
from cerebras_tensorflow.errors import CheckpointError, CorruptCheckpointError
from cerebras_tensorflow.files import read_regular
from cerebras_tensorflow.locations import local_path, object_location
from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint
from cerebras_tensorflow.saver.interface import BytesLike, TensorEntry, TensorReader, missing_tensor

_INDEX_SUFFIX = ".index.json"
_MAX_INDEX_BYTES = 64 << 20
_SHARD = re.compile(r"(.*)-\d{5}-of-(\d{5})(\.\w+)")


def open_any(path: str | os.PathLike[str]) -> TensorReader:
    """Return the reader for a checkpoint of any format.

    Args:
        path: A file of torch.save, safetensors or HDF5; the prefix of a TensorFlow checkpoint; the `.index.json` or any
            shard of a sharded Hugging Face checkpoint; the folder of a Hugging Face checkpoint; or the URL of a
            checkpoint in our object format.

    Raises:
        CheckpointError: If it is missing, or of a kind that we do not read.
        CorruptCheckpointError: If it is damaged.
    """
    if object_location(path) is not None:
        return open_checkpoint(path)
    path = _head(local_path(path))
    files = _shards(path)
    if files is not None:
        return ShardedReader(path, files)
    return _open_one(path)


def stem(path: str | os.PathLike[str]) -> str:
    """Return a checkpoint's path without the shard number and the format's extension."""
    text = os.fspath(path)
    if text.endswith(_INDEX_SUFFIX):
        text = text.removesuffix(_INDEX_SUFFIX)
    match = _SHARD.fullmatch(text)
    if match:
        return match[1]
    # A TensorFlow prefix such as model.ckpt-100 has no extension to remove.
    root, extension = os.path.splitext(text)
    return root if extension in (".bin", ".mdl", ".pt", ".pth", ".safetensors", ".hdf5", ".h5", ".index") else text


def is_part(name: str, other: str) -> bool:
    """Whether a file belongs to the checkpoint of a name in the same folder: itself, a shard, a part of a bundle.

    >>> is_part("model.safetensors.index.json", "model-00001-of-00002.safetensors"), is_part("w.h5", "v.h5")
    (True, False)
    """
    base = name.removesuffix(_INDEX_SUFFIX)
    match = _SHARD.fullmatch(base)
    root, extension = (match[1], match[3]) if match else os.path.splitext(base)
    shard = _SHARD.fullmatch(other)
    is_shard = shard is not None and (shard[1], shard[3]) == (root, extension)
    bundle = name.removesuffix(".index")
    return other == name or is_shard or other == bundle + ".index" or other.startswith(bundle + ".data-")


def _head(path: str) -> str:
    """Return the file to open in a Hugging Face folder; return any other path unchanged."""
    heads = [os.path.join(path, name) for name in HEADS]
    return next((head for head in heads if os.path.isfile(head)), path)


def _open_one(path: str) -> TensorReader:
    if os.path.isfile(path) and not path.endswith(".index") and is_torch_file(path):
        return TorchReader(path)
    return open_checkpoint(path)


def _shards(path: str) -> list[str] | None:
    """Return the paths of all shards, or None if the path is a checkpoint in one piece."""
    folder = Path(path).parent
    if path.endswith(_INDEX_SUFFIX):
        try:
            weight_map = json.loads(read_regular(path, _MAX_INDEX_BYTES))["weight_map"]
            # Use only the last part of a name, so that it cannot point to another folder.
            return [str(folder / Path(name).name) for name in sorted(set(weight_map.values()))]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
            raise CheckpointError(f"{path}: not the index of a sharded checkpoint: {exc}") from exc
    match = _SHARD.fullmatch(path)
    if match is None:
        return None
    count = int(match[2])
    files = [f"{match[1]}-{number:05d}-of-{count:05d}{match[3]}" for number in range(1, count + 1)]
    missing = [file for file in files if not os.path.isfile(file)]
    if missing:
        raise CheckpointError(f"{path}: {len(missing)} of {count} shards are missing, first {missing[0]}")
    return files


class ShardedReader(TensorReader):
    """The tensors of several files.

    Args:
        path: The file that the user named.
        files: The shards.

    Raises:
        CheckpointError: If a shard cannot be read, or two shards have a tensor of the same name. No file stays open.
    """

    def __init__(self, path: str, files: list[str]) -> None:
        self.path = path
        self._home: dict[str, TensorReader] = {}
        with contextlib.ExitStack() as stack:
            self._readers = [stack.enter_context(_open_one(file)) for file in files]
            for reader in self._readers:
                for name in reader.names():
                    other = self._home.setdefault(name, reader)
                    if other is not reader:
                        raise CorruptCheckpointError(
                            f"{path}: {name} is in {other.path} and in {reader.path}. They may be from two "
                            "checkpoints: keep the files of one of them."
                        )
            stack.pop_all()

    def names(self) -> list[str]:
        return sorted(self._home)

    def __contains__(self, name: object) -> bool:
        return name in self._home

    def entry(self, name: str) -> TensorEntry:
        return self._reader(name).entry(name)

    def read(self, name: str) -> np.ndarray[Any, Any]:
        return self._reader(name).read(name)

    def read_into(self, name: str, buffer: BytesLike) -> None:
        self._reader(name).read_into(name, buffer)

    def read_slice(self, name: str, start: int, stop: int) -> np.ndarray[Any, Any]:
        return self._reader(name).read_slice(name, start, stop)

    def chunks(self, name: str) -> Iterator[BytesLike]:
        return self._reader(name).chunks(name)

    def verify(self) -> int:
        return sum(reader.verify() for reader in self._readers)

    def check_complete(self) -> None:
        for reader in self._readers:
            reader.check_complete()

    def close(self) -> None:
        for reader in self._readers:
            reader.close()

    def _reader(self, name: str) -> TensorReader:
        if name not in self._home:
            raise missing_tensor(self, name)
        return self._home[name]
