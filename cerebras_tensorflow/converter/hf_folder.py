"""Writes a Hugging Face checkpoint as a folder: shards, index, config.json. The folder appears when it is complete."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np

from cerebras_tensorflow import files
from cerebras_tensorflow.converter.torch_writer import TorchWriter
from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.locations import local_path
from cerebras_tensorflow.saver.files.atomic import reporting
from cerebras_tensorflow.saver.interface import BytesLike, TensorEntry, TensorWriter, as_bytes
from cerebras_tensorflow.saver.safetensors_file import SafetensorsWriter
from cerebras_tensorflow.saver.sharding import by_size

CONFIG = "config.json"
_STEMS = {True: ("model", ".safetensors"), False: ("pytorch_model", ".bin")}
# Names of the file that a reader opens in a folder, best first: the index of shards, or a single file.
HEADS = tuple(f"{stem}{suffix}{index}" for stem, suffix in _STEMS.values() for index in (".index.json", ""))


class HfFolderWriter(TensorWriter):
    """Writes a folder, one shard after another.

    Args:
        path: The folder. It must not exist.
        entries: All tensors that will be added, in this order.
        shard_bytes: Largest total size of the tensors in a file [B]; a larger tensor gets its own file.
        is_safetensors: Whether to write safetensors files; otherwise files of torch.save.
        config: Content of config.json.

    Raises:
        CheckpointError: If the folder exists or cannot be made.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        entries: Mapping[str, TensorEntry],
        shard_bytes: int,
        is_safetensors: bool,
        config: Mapping[str, Any],
    ) -> None:
        self.path = os.path.abspath(local_path(path))
        if os.path.lexists(self.path):
            raise CheckpointError(f"{self.path}: exists. Remove it, or choose another folder.")
        self._entries, self._is_safetensors = entries, is_safetensors
        shard_of = by_size(shard_bytes)
        numbers = {name: shard_of(name, entry.num_bytes) for name, entry in entries.items()}
        num_shards = max(numbers.values(), default=0) + 1
        stem, suffix = _STEMS[is_safetensors]
        self._file_of = {name: f"{stem}-{k + 1:05d}-of-{num_shards:05d}{suffix}" for name, k in numbers.items()}
        with reporting(self.path):
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            with ExitStack() as stack:
                self._draft = stack.enter_context(files.draft_folder(self.path))
                files.write_text(self._draft / CONFIG, json.dumps(config, indent=4) + "\n")
                self._open_draft = stack.pop_all()
        self._shard: tuple[str, TensorWriter] | None = None

    @property
    def index_name(self) -> str:
        """Name of the file that lists the shards."""
        stem, suffix = _STEMS[self._is_safetensors]
        return f"{stem}{suffix}.index.json"

    def add(self, name: str, array: Any) -> None:
        array = np.asarray(array)
        self.add_chunks(name, array.dtype, array.shape, [as_bytes(array)])

    def add_chunks(self, name: str, dtype: Any, shape: tuple[int, ...], chunks: Iterable[BytesLike]) -> None:
        file = self._file_of[name]
        if self._shard is None or self._shard[0] != file:
            self._end_shard()
            self._shard = (file, self._open(file))
        self._shard[1].add_chunks(name, dtype, shape, chunks)

    def commit(self) -> None:
        try:
            self._end_shard()
            total = sum(entry.num_bytes for entry in self._entries.values())
            index = {"metadata": {"total_size": total}, "weight_map": self._file_of}
            with reporting(self.path):
                files.write_text(os.path.join(self._draft, self.index_name), json.dumps(index, indent=4) + "\n")
                os.rename(self._draft, self.path)
                files.sync_folder(os.path.dirname(self.path))
        finally:
            self.abort()

    def abort(self) -> None:
        if self._shard is not None:
            self._shard[1].abort()
            self._shard = None
        self._open_draft.close()

    def _open(self, file: str) -> TensorWriter:
        path = os.path.join(self._draft, file)
        if not self._is_safetensors:
            return TorchWriter(path)
        return SafetensorsWriter(path, {n: entry for n, entry in self._entries.items() if self._file_of[n] == file})

    def _end_shard(self) -> None:
        if self._shard is not None:
            self._shard[1].commit()
            self._shard = None
