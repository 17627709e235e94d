"""A library for TensorFlow variables in Cerebras HDF5 checkpoints: save, load, inspect, update, shard, convert.

>>> import numpy as np, tempfile
>>> path = tempfile.mkdtemp() + "/model-ckpt-5.h5"
>>> save(path, {"dense/kernel": np.ones((4, 2), np.float32), "global_step": np.int64(5)})
>>> with H5Checkpoint(path) as checkpoint:
...     kernel = checkpoint["dense/kernel"]
...     print(kernel.shape, kernel[1:3].tolist(), sorted(checkpoint))
(4, 2) [[1.0, 1.0], [1.0, 1.0]] ['dense/kernel', 'global_step']
>>> update(path, {"global_step": np.int64(6)})
>>> int(load(path, ["global_step"])["global_step"])
6
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np

from cerebras_tensorflow.locations import object_location
from cerebras_tensorflow.saver import convert
from cerebras_tensorflow.saver.bundle.writer import BundleWriter
from cerebras_tensorflow.saver.checkpoint_reader import open_checkpoint
from cerebras_tensorflow.saver.checkpoint_writer import open_writer
from cerebras_tensorflow.saver.files import mapped
from cerebras_tensorflow.saver.hdf5.sharded import ShardedH5Writer
from cerebras_tensorflow.saver.hdf5.update import update
from cerebras_tensorflow.saver.hdf5.writer import H5Writer
from cerebras_tensorflow.saver.interface import TensorReader, TensorWriter
from cerebras_tensorflow.saver.sharding import Layout, by_size, read_layout

# The distribution of tensors over files: a function of (name, size), a layout of name patterns, or a size limit [B].
Sharding = Callable[[str, int], int] | Layout | int


@dataclass(frozen=True)
class LazyTensor:
    """A stored tensor whose values are read on demand.

    Indexing reads only the rows that a slice or an index along the first axis selects; `numpy.asarray` reads all.
    """

    reader: TensorReader
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        """Dims."""
        return self.reader.entry(self.name).shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type."""
        return self.reader.entry(self.name).dtype

    @property
    def nbytes(self) -> int:
        """Size of the value [B]."""
        return self.reader.entry(self.name).num_bytes

    def read(self) -> np.ndarray[Any, Any]:
        """Return the whole value, checked against its checksum."""
        return self.reader.read(self.name)

    def __getitem__(self, index: Any) -> Any:
        first, *rest = index if isinstance(index, tuple) else (index,)
        if isinstance(first, slice) and first.step in (None, 1) and self.shape:
            start, stop, _ = first.indices(self.shape[0])
            return self.reader.read_slice(self.name, start, stop)[(slice(None), *rest)]
        if isinstance(first, int) and self.shape:
            row = range(self.shape[0])[first]
            return self.reader.read_slice(self.name, row, row + 1)[(0, *rest)]
        return self.read()[index]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError(f"{self.name} is in a file, so copy=False is impossible; use copy=None or True")
        value = self.read()
        return value if dtype is None else value.astype(dtype, copy=False)


class H5Checkpoint(Mapping[str, LazyTensor]):
    """A checkpoint as a mapping of names to tensors that are read on demand; a context manager.

    Args:
        path: Of any kind that `open_checkpoint` reads.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._reader = open_checkpoint(path)
        self.path = self._reader.path

    def __getitem__(self, name: str) -> LazyTensor:
        self._reader.entry(name)
        return LazyTensor(self._reader, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._reader.names())

    def __len__(self) -> int:
        return len(self._reader.names())

    def __contains__(self, name: object) -> bool:
        return name in self._reader

    def verify(self) -> int:
        """Compare every checksum; return the bytes checked."""
        return self._reader.verify()

    def close(self) -> None:
        """Release the files."""
        self._reader.close()

    def __enter__(self) -> H5Checkpoint:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def writer(
    path: str | os.PathLike[str],
    sharding: Sharding | None = None,
    compression: str = "none",
    has_many_attributes: bool = False,
) -> TensorWriter:
    """Return a writer that takes one tensor at a time (`add`, `add_chunks`), in bounded memory.

    For a path it writes HDF5. For a URL in object storage it writes data objects and their manifest.
    `has_many_attributes` is for one HDF5 file, as of `H5Writer`.
    """
    if object_location(path):
        return open_writer(path, None if sharding is None else _shard_of(sharding), compression)
    if sharding is None:
        return H5Writer(path, compression, has_many_attributes=has_many_attributes)
    return ShardedH5Writer(path, _shard_of(sharding), compression)


def save(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Any] | Iterable[tuple[str, Any]],
    sharding: Sharding | None = None,
    compression: str = "none",
) -> None:
    """Save named arrays. An iterable of pairs is consumed one by one, so they need not fit in memory together.

    Raises:
        ValueError: If a name occurs twice or the format cannot hold a type.
        CheckpointError: If the file cannot be written; an existing checkpoint stays.
    """
    with writer(path, sharding, compression) as target:
        for name, value in tensors.items() if isinstance(tensors, Mapping) else tensors:
            target.add(name, value)


def load(
    path: str | os.PathLike[str], names: Iterable[str] | None = None, is_mapped: bool = True
) -> dict[str, np.ndarray[Any, Any]]:
    """Return the values of all tensors, or of some, each checked against its checksum.

    Args:
        path: Of any kind that `open_checkpoint` reads.
        names: All by default.
        is_mapped: Return large values as copy-on-write maps of the file (`mapped.Maps.read_all`), which take no memory
            for a second copy. You may write to them, and `update` does not change them. Other programs must not change
            the file in place while they are in use. False returns ordinary arrays.

    Raises:
        CheckpointError, KeyError: As `open_checkpoint` and `TensorReader.read`.
    """
    with open_checkpoint(path) as reader, mapped.Maps() as maps:
        if names is None:
            reader.check_places()
        wanted = reader.names() if names is None else names
        return maps.read_all(reader, wanted) if is_mapped else {name: reader.read(name) for name in wanted}


def tensorflow_to_h5(
    saver_path: str | os.PathLike[str],
    h5_path: str | os.PathLike[str],
    sharding: Sharding | None = None,
    compression: str = "none",
    selection: convert.Selection | None = None,
) -> convert.Report:
    """Convert a TensorFlow checkpoint to HDF5 in bounded memory; report what was copied."""
    with open_checkpoint(saver_path) as reader, writer(h5_path, sharding, compression) as target:
        return convert.copy(reader, target, selection)


def h5_to_tensorflow(
    h5_path: str | os.PathLike[str],
    saver_path: str | os.PathLike[str],
    sharding: Sharding | None = None,
    selection: convert.Selection | None = None,
) -> convert.Report:
    """Convert an HDF5 checkpoint to TensorFlow's format in bounded memory; report what was copied."""
    shard_of = None if sharding is None else _shard_of(sharding)
    is_object = object_location(saver_path) is not None
    target = open_writer(saver_path, shard_of) if is_object else BundleWriter(saver_path, shard_of)
    with open_checkpoint(h5_path) as reader, target:
        return convert.copy(reader, target, selection)


def _shard_of(sharding: Sharding) -> Callable[[str, int], int]:
    if isinstance(sharding, Layout):
        return sharding.shard
    return by_size(sharding) if isinstance(sharding, int) else sharding


__all__ = [
    "H5Checkpoint",
    "Layout",
    "LazyTensor",
    "h5_to_tensorflow",
    "load",
    "read_layout",
    "save",
    "tensorflow_to_h5",
    "update",
    "writer",
]
