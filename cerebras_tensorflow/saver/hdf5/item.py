"""A tensor in another writer's HDF5 file: its type, and how to read it. Travels as JSON between two processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from cerebras_tensorflow.saver.hdf5 import format as h5_format
from cerebras_tensorflow.saver.interface import TensorEntry


@dataclass(frozen=True)
class Item:
    """A tensor: either a dataset or a value in memory.

    Attributes:
        entry: Its type, shape and size.
        link: The dataset's path in the file; empty for a value in memory.
        stored: NumPy's name for the type as which HDF5 returns the elements; empty if they are strings of HDF5.
        chunks: The shape of the dataset's chunks; None if it has none.
        offset: Position of the elements in the file, if they are stored there as `stored`, one after the other.
        value: The value in memory; it is repeated to fill the shape.
    """

    entry: TensorEntry
    link: str = ""
    stored: str = ""
    chunks: tuple[int, ...] | None = None
    offset: int | None = None
    value: np.ndarray[Any, Any] | None = None

    def filled(self) -> np.ndarray[Any, Any]:
        """Return the value in memory at its full shape, as a new array."""
        assert self.value is not None
        return np.array(np.broadcast_to(self.value, self.entry.shape))

    def as_json(self) -> list[Any]:
        """Return this item as a list for JSON.

        Raises:
            ValueError: If an HDF5 checkpoint cannot hold its type.
        """
        entry, value = self.entry, None
        if self.value is not None:
            is_text = self.value.dtype.kind == "O"
            value = [list(self.value.shape), (self.value.item() if is_text else self.value.tobytes()).hex()]
        return [
            *(h5_format.type_name(entry.dtype), list(entry.shape), entry.num_bytes),
            *(self.link, self.stored, self.chunks, self.offset, value),
        ]


def item_from_json(content: list[Any]) -> Item:
    """Return the item that `as_json` described.

    Raises:
        ValueError, TypeError: If it describes none.
    """
    type_name, shape, num_bytes, link, stored, chunks, offset, value = content
    dtype = h5_format.dtype_named(type_name)
    array = None
    if value is not None:
        content_bytes = bytes.fromhex(value[1])
        array = np.array(content_bytes, object) if dtype.kind == "O" else np.frombuffer(content_bytes, dtype)
        array = array.reshape(value[0])
    entry = TensorEntry(dtype, tuple(shape), num_bytes)
    return Item(entry, link, stored, None if chunks is None else tuple(chunks), offset, array)
