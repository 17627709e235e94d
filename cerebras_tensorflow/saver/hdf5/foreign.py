"""Reading HDF5 checkpoints of other writers. `contents.py` lists the generations of files.

Another process runs libhdf5 (`isolated.py`). Values that are stored as one run of bytes are read without it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from cerebras_tensorflow import files
from cerebras_tensorflow.errors import CheckpointError, CorruptCheckpointError
from cerebras_tensorflow.saver.bundle import string_tensor
from cerebras_tensorflow.saver.files import extents
from cerebras_tensorflow.saver.hdf5 import blocks as h5_blocks
from cerebras_tensorflow.saver.hdf5 import format as h5_format
from cerebras_tensorflow.saver.hdf5.index import most_bytes
from cerebras_tensorflow.saver.hdf5.isolated import IsolatedH5
from cerebras_tensorflow.saver.hdf5.item import Item, item_from_json
from cerebras_tensorflow.saver.interface import (
    BytesLike,
    TensorEntry,
    TensorReader,
    as_bytes,
    flat_view,
    missing_tensor,
    row_range,
    target_view,
)


class ForeignH5Reader(TensorReader):
    """The tensors of an HDF5 file without our index. Its only checksums are those of HDF5's own filters.

    The class has more than 20 methods: half implement TensorReader, and the others handle each generation of files.

    Args:
        path: The file.
        accept_unindexed: Also read one of our files that has lost its index: it was cut short, or another program
            changed it.

    Raises:
        CheckpointError: If it uses another file, or two tensors have the same name.
        CorruptCheckpointError: If HDF5 cannot read it, or our index is lost.

    Attributes:
        skipped: Objects that are not tensors, by name, with the reason: pickled objects, None, compound types.
        generation: The file's generation, from the table in `contents.py`.
    """

    def __init__(self, path: str | os.PathLike[str], accept_unindexed: bool = False) -> None:
        self.path = os.fspath(path)
        try:
            self._file = files.open_regular(self.path)
        except OSError as exc:
            raise CheckpointError(f"{self.path}: cannot be opened: {exc.strerror or exc}. Check the path.") from exc
        self._fd = self._file.fileno()
        try:
            self._hdf5 = IsolatedH5(self.path, self._fd)
        except CheckpointError:
            self._file.close()
            raise
        try:
            self._take(self._hdf5.ask("contents", path=self.path, accept_unindexed=accept_unindexed))
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as exc:
            self.close()
            raise CorruptCheckpointError(
                f"{self.path}: HDF5 cannot open it: {exc}. It is truncated, damaged or not a checkpoint."
            ) from exc
        except BaseException:
            self.close()
            raise

    def _take(self, contents: dict[str, Any]) -> None:
        self._items: dict[str, Item] = {name: item_from_json(item) for name, item in contents["items"].items()}
        self.skipped: dict[str, str] = contents["skipped"]
        self._kinds: dict[str, str] = contents["kinds"]
        self._metadata: dict[str, dict[str, Any]] = contents["metadata"]
        self._links: dict[str, str] = contents["links"]
        self.generation: str = contents["generation"]

    def names(self) -> list[str]:
        return sorted(self._items)

    def __contains__(self, name: object) -> bool:
        return name in self._items

    def entry(self, name: str) -> TensorEntry:
        return self._item(name).entry

    def read(self, name: str) -> np.ndarray[Any, Any]:
        item = self._item(name)
        if item.value is not None:
            return item.filled()
        if item.entry.dtype.kind == "O":
            return self._read_strings(name, item)
        array = np.empty(item.entry.shape, item.entry.dtype)
        self.read_into(name, array)
        return array

    def read_into(self, name: str, buffer: BytesLike) -> None:
        item = self._item(name)
        target = target_view(self, name, item.entry, buffer)
        if item.value is not None:
            target[:] = as_bytes(item.filled())
        elif target.size:
            self._fill(name, item, target, None)

    def read_slice(self, name: str, start: int, stop: int) -> np.ndarray[Any, Any]:
        item = self._item(name)
        entry = item.entry
        start, stop = row_range(self, name, entry.shape, start, stop)
        if item.value is not None or entry.dtype.kind == "O":
            return self.read(name)[start:stop]
        rows = np.empty((stop - start, *entry.shape[1:]), entry.dtype)
        if rows.size:
            whole = ((0, dim) for dim in entry.shape[1:])
            self._fill(name, item, flat_view(rows), ((start, stop), *whole))
        return rows

    def chunks(self, name: str) -> Iterator[BytesLike]:
        item = self._item(name)
        if item.value is not None:
            yield as_bytes(item.filled())
            return
        if item.offset is not None:
            with _hdf5_errors(self.path, name):
                yield from extents.stream(self._open_fd(), item.offset, item.entry.num_bytes)
            return
        itemsize = np.dtype(item.stored).itemsize
        for block in h5_blocks.blocks(item.entry.shape, item.chunks, itemsize):
            bounds = tuple((part.start, part.stop) for part in block)
            piece = np.empty(math.prod(stop - start for start, stop in bounds) * itemsize, np.uint8)
            self._fill(name, item, piece, bounds)
            yield piece

    def verify(self) -> int:
        num_bytes = 0
        for name, item in self._items.items():
            if item.entry.dtype.kind == "O":
                self.read(name)
            else:
                for _ in self.chunks(name):
                    pass
            num_bytes += item.entry.num_bytes
        return num_bytes

    def check_complete(self) -> None:
        # When HDF5 opens a file, it compares the file's size with the declared size.
        self._open_fd()

    def close(self) -> None:
        self._hdf5.close()
        self._file.close()

    def root_attribute(self, name: str) -> Any:
        """Return an attribute of the root group: a number, or anything else as text; None if the file lacks it."""
        with _hdf5_errors(self.path, name):
            return self._hdf5.ask("attribute", name=name)

    def kind(self, name: str) -> str:
        """Return the writer's name for a value's type, such as TorchTensorSerializer; empty if the file has none."""
        return str(self.metadata(name).get("__TYPE__") or self._kinds.get(name, ""))

    def metadata(self, name: str) -> dict[str, Any]:
        """Return the JSON metadata of a value in the current format; empty if it has none."""
        return self._metadata.get(name, {})

    def resolve(self, name: str) -> str:
        """Return the name under which a value is stored: another name if the value is a link."""
        return self._links.get(name, name)

    def object_bytes(self, name: str) -> bytes:
        """Return the raw pickle of an object that `skipped` names, for inspection, without loading it.

        Raises:
            KeyError: If there is no such object.
            CorruptCheckpointError: If its bytes are damaged.
        """
        with _hdf5_errors(self.path, name):
            pickled = self._hdf5.ask("object", names=[name, h5_format.quote(name)])
        if pickled is None:
            raise KeyError(f"{self.path}: no pickled object {name!r}")
        return bytes.fromhex(pickled)

    def _item(self, name: str) -> Item:
        item = self._items.get(name)
        if item is None:
            if name in self.skipped:
                raise KeyError(f"{self.path}: {name!r} is not a tensor: {self.skipped[name]}")
            raise missing_tensor(self, name)
        return item

    def _open_fd(self) -> int:
        if self._file.closed:
            raise CheckpointError(f"{self.path}: this reader is closed")
        return self._fd

    def _fill(
        self,
        name: str,
        item: Item,
        target: np.ndarray[Any, np.dtype[np.uint8]],
        bounds: tuple[tuple[int, int], ...] | None,
    ) -> None:
        """Fill memory with a tensor's elements, or with those between bounds [start, stop) of each dim."""
        with _hdf5_errors(self.path, name):
            if item.offset is None:
                self._hdf5.read_into(target.data, "read", link=item.link, stored=item.stored, selection=bounds)
                return
            row_bytes = item.entry.num_bytes // max(item.entry.shape[0], 1) if bounds else 0
            start = bounds[0][0] * row_bytes if bounds else 0
            extents.fill(self._open_fd(), item.offset + start, target)

    def _read_strings(self, name: str, item: Item) -> np.ndarray[Any, Any]:
        num_elements = h5_format.num_elements(item.entry.shape)
        try:
            if item.stored:
                stored = np.empty(item.entry.num_bytes, np.uint8)
                self._fill(name, item, stored, None)
                elements, _ = string_tensor.decode(stored.tobytes(), num_elements)
            else:
                with _hdf5_errors(self.path, name):
                    limit = most_bytes(os.fstat(self._open_fd()).st_size)
                    content = self._hdf5.read_all("strings", limit, link=item.link)
                elements, _ = string_tensor.decode(content, num_elements)
        except ValueError as exc:
            raise CorruptCheckpointError(f"{self.path}: tensor {name!r} is damaged: {exc}") from exc
        return string_tensor.to_array(elements, item.entry.shape)


class _hdf5_errors:
    """Turn an error while reading into one that names file and tensor."""

    def __init__(self, path: str, name: str) -> None:
        self._path, self._name = path, name

    def __enter__(self) -> None:
        return None

    def __exit__(self, exc_type: Any, exc: Any, traceback: Any) -> None:
        if isinstance(exc, OSError | EOFError | MemoryError):
            raise CorruptCheckpointError(
                f"{self._path}: tensor {self._name!r} cannot be read: {exc}. Use another checkpoint."
            ) from exc
