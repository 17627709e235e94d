"""HDF5 checkpoints in several files: each shard is a complete checkpoint, and one more file is the index of all."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from cerebras_tensorflow import files
from cerebras_tensorflow.errors import CheckpointError
from cerebras_tensorflow.locations import local_path
from cerebras_tensorflow.saver.files.atomic import reporting
from cerebras_tensorflow.saver.hdf5.index import H5Record
from cerebras_tensorflow.saver.hdf5.writer import H5Writer
from cerebras_tensorflow.saver.interface import BytesLike, Reservation, TensorWriter
from cerebras_tensorflow.saver.names import shard_path, shards_of

_MAX_SHARDS = 99_999


class ShardedH5Writer(TensorWriter):
    """A sharded HDF5 checkpoint being written: `NAME.h5` with the index, `NAME-0000k-of-0000n.h5` with the values.

    Args:
        path: The file with the index.
        shard_of: Returns the shard of a tensor, from its name and size [B].
        compression, jobs, is_durable: As H5Writer's.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        shard_of: Callable[[str, int], int],
        compression: str = "none",
        jobs: int = 1,
        is_durable: bool = True,
    ) -> None:
        self.path = os.path.abspath(local_path(path))
        self._shard_of = shard_of
        self._compression = compression
        self._jobs = jobs
        self._is_durable = is_durable
        self._index: H5Writer | None = H5Writer(self.path, is_durable=is_durable)
        self._shards: dict[int, H5Writer] = {}
        self._names: set[str] = set()

    def add(self, name: str, array: Any) -> None:
        array = np.asarray(array)
        self._shard(name, array.nbytes).add(name, array)
        self._names.add(name)

    def add_chunks(self, name: str, dtype: Any, shape: tuple[int, ...], chunks: Iterable[BytesLike]) -> None:
        self._shard(name, _num_bytes(dtype, shape)).add_chunks(name, dtype, shape, chunks)
        self._names.add(name)

    def reserve(self, name: str, dtype: Any, shape: tuple[int, ...], crc: int) -> Reservation | None:
        reservation = self._shard(name, _num_bytes(dtype, shape)).reserve(name, dtype, shape, crc)
        if reservation is not None:
            self._names.add(name)
        return reservation

    def commit(self) -> None:
        if self._index is None:
            raise CheckpointError(f"{self.path}: this writer has ended; open a new one to write again")
        replaced = shards_of(self.path)
        num_shards = max(self._shards, default=-1) + 1
        # Take unused shard names: the replaced checkpoint's files must exist until the new index does.
        while any(shard_path(self.path, shard, num_shards) in replaced for shard in range(num_shards)):
            num_shards += 1
        placed: list[str] = []
        try:
            records: dict[str, H5Record] = {}
            for number, shard in self._shards.items():
                target = shard_path(self.path, number, num_shards)
                placed.append(target)  # first: it may fail after it has its name
                shard.commit_as(target, (), shard.records)
                records |= {n: dataclasses.replace(record, shard=number) for n, record in shard.records.items()}
            names = tuple(os.path.basename(shard_path(self.path, k, num_shards)) for k in range(num_shards))
            self._index.commit_as(self.path, names, records)
        except BaseException:
            if not self._index.is_placed:
                for path in placed:
                    files.remove_if_possible(path)
            raise
        finally:
            self.abort()
        with reporting(self.path):
            for path in replaced:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
            if self._is_durable:
                files.sync_folder(os.path.dirname(self.path))

    def abort(self) -> None:
        for shard in self._shards.values():
            shard.abort()
        self._shards = {}
        if self._index is not None:
            self._index.abort()
            self._index = None

    def _shard(self, name: str, num_bytes: int) -> H5Writer:
        if self._index is None:
            raise CheckpointError(f"{self.path}: this writer has ended; open a new one to write again")
        if name in self._names:
            raise ValueError(f"{self.path}: tensor {name!r} is added twice")
        number = self._shard_of(name, num_bytes)
        if not 0 <= number < _MAX_SHARDS:
            raise ValueError(f"{name}: shard {number} is outside 0 to {_MAX_SHARDS - 1}")
        if number not in self._shards:
            stem, suffix = os.path.splitext(self.path)
            self._shards[number] = H5Writer(
                f"{stem}-{number:05d}{suffix}", self._compression, self._jobs, self._is_durable
            )
        return self._shards[number]


def _num_bytes(dtype: Any, shape: tuple[int, ...]) -> int:
    return int(np.dtype(dtype).itemsize * math.prod(shape))
