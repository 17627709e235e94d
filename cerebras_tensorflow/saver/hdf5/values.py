"""The meaning of a dataset in another writer's HDF5 file: a tensor, a scalar, a string, or nothing that we load.

Only `process.py` uses this: it calls libhdf5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import h5py
import ml_dtypes
import numpy as np

from cerebras_tensorflow.errors import CorruptCheckpointError
from cerebras_tensorflow.saver.hdf5 import format as h5_format
from cerebras_tensorflow.saver.hdf5.index import ALWAYS_ALLOWED_BYTES, MAX_EXPANSION
from cerebras_tensorflow.saver.hdf5.item import Item
from cerebras_tensorflow.saver.interface import TensorEntry

_ARRAY_TYPES = {"NumpyArrayH5Type", "TorchTensorH5Type", "NumpyArraySerializer", "TorchTensorSerializer"}
_FULL_TYPES = {"FullTensorH5Type", "DeferredFullTensor"}


@dataclass(frozen=True)
class FileFacts:
    """The file of a dataset: its path for errors, its size [B] for limits."""

    path: str
    size: int


def item_of(file: FileFacts, path: str, dataset: Any) -> Item | str:
    """Return a dataset's tensor, or the reason why it is not one.

    Args:
        file: The file of the dataset.
        path: Its path in the file.
        dataset: The h5py dataset.

    Raises:
        CorruptCheckpointError: If its declared size is impossible.
        TypeError, ValueError: If its type is not a tensor type.
    """
    attributes = dataset.attrs
    kind = kind_of(attributes)
    for key in ("string_value", "string_val"):
        if key in attributes:
            return small(np.array(text_of(attributes[key]).encode(), object))
    if kind in ("NoneH5Type", "NoneSerializer"):
        return "None"
    if kind in ("ObjectH5Type", "ObjectSerializer") or "object_value" in attributes or "__BYTES__" in attributes:
        return "a pickled Python object, which is never loaded"
    if kind in _FULL_TYPES or _flag(attributes, "is_constructible"):
        return _full(attributes)
    if "filepath" in attributes:
        return "a tensor in another file, which is refused"
    if dataset.shape is None:
        return f"an empty dataset of kind {kind or 'unknown'}"
    if kind and kind not in _ARRAY_TYPES and kind not in ("ScalarH5Type", "ScalarSerializer"):
        return f"of kind {kind}, which refers to a tensor elsewhere"
    return _array(file, path, dataset)


def kind_of(attributes: Any) -> str:
    """Return the writer's name for a dataset's type, such as NumpyArrayH5Type; empty if it has none.

    Releases 1.7 and 1.8 have flags instead of names.
    """
    kind = text_of(attributes.get(h5_format.LEGACY_TYPE_ATTRIBUTE))
    kind = kind or text_of(attributes.get(h5_format.STORAGE_TYPE_ATTRIBUTE))
    flags = {"is_none": "NoneH5Type", "is_string": "StringH5Type", "is_scalar": "ScalarH5Type"}
    return kind or next((name for flag, name in flags.items() if _flag(attributes, flag)), "")


def _array(file: FileFacts, path: str, dataset: Any) -> Item | str:
    attributes = dataset.attrs
    dtype = dataset.dtype
    num_stored = dataset.size * dtype.itemsize
    if num_stored > max(ALWAYS_ALLOWED_BYTES, MAX_EXPANSION * file.size):
        raise CorruptCheckpointError(
            f"{file.path}: {path!r} declares {num_stored} bytes, in a file of {file.size}: damaged or hostile"
        )
    is_contiguous = dataset.chunks is None and dataset.size and dtype.kind != "O"
    if is_contiguous and dataset.id.get_storage_size() != num_stored:
        raise CorruptCheckpointError(f"{file.path}: {path!r} has {dataset.id.get_storage_size()} bytes stored")
    element_type = text_of(attributes.get(h5_format.ELEMENT_TYPE_ATTRIBUTE))
    if element_type == h5_format.STRING_TYPE:
        dims = text_of(attributes[h5_format.STRING_SHAPE_ATTRIBUTE])
        shape = tuple(int(dim) for dim in dims.split(",") if dim)
        return _stored(TensorEntry(np.dtype(object), shape, num_stored), path, dataset, np.dtype("u1"))
    if element_type:
        view = h5_format.dtype_named(element_type)
        return _stored(TensorEntry(view, dataset.shape, num_stored), path, dataset, np.dtype("u1"))
    if _is_bfloat16(attributes):
        if dtype.itemsize != 2 or dtype.kind not in "iu":
            return f"marked as bfloat16, but stored as {dtype}"
        # Read the bits as the stored type: between signed and unsigned, HDF5 would convert values, not bits.
        bits = dtype.newbyteorder("<")
        return _stored(TensorEntry(np.dtype(ml_dtypes.bfloat16), dataset.shape, num_stored), path, dataset, bits)
    if h5py.check_string_dtype(dtype) is not None or dtype.kind == "S":
        return Item(TensorEntry(np.dtype(object), dataset.shape, num_stored), path)
    plain = np.dtype(h5_format.type_name(dtype.newbyteorder("=")))
    return _stored(TensorEntry(plain, dataset.shape, num_stored), path, dataset, dtype.newbyteorder("<"))


def _stored(entry: TensorEntry, path: str, dataset: Any, stored: np.dtype[Any]) -> Item:
    """Return the item of a dataset whose elements are read as a type."""
    if dataset.dtype.itemsize != stored.itemsize:
        raise ValueError(f"{stored} elements are stored as {dataset.dtype}")
    is_contiguous = dataset.id.get_create_plist().get_layout() == h5py.h5d.CONTIGUOUS
    # Compare the types too: for unusual floats, h5py's type is not that of the stored bits.
    is_direct = is_contiguous and dataset.id.get_type() == h5py.h5t.py_create(stored, logical=True)
    offset = dataset.id.get_offset() if is_direct and dataset.size else None
    return Item(entry, path, stored.str, dataset.chunks, offset)


def _full(attributes: Any) -> Item | str:
    try:
        shape = tuple(int(dim) for dim in np.atleast_1d(attributes["shape"]))
        value = np.asarray(attributes["fill_value"])
    except (KeyError, TypeError, ValueError):
        return "a constant whose shape is pickled, which is never loaded"
    num_bytes = h5_format.num_elements(shape) * value.itemsize
    if value.size != 1 or value.dtype.kind not in "biuf" or num_bytes > ALWAYS_ALLOWED_BYTES:
        return f"a constant of shape {shape} that is too large to expand"
    h5_format.type_name(value.dtype)
    return Item(TensorEntry(value.dtype, shape, num_bytes), value=np.asarray(value.reshape(-1)[0]))


def small(value: np.ndarray[Any, Any]) -> Item:
    """Return a value in memory as an item."""
    num_bytes = sum(len(element) for element in value.reshape(-1)) if value.dtype.kind == "O" else value.nbytes
    return Item(TensorEntry(value.dtype, value.shape, num_bytes), value=value)


def _is_bfloat16(attributes: Any) -> bool:
    if _flag(attributes, h5_format.BFLOAT16_ATTRIBUTE):
        return True
    dtypes = attributes.get("dtypes")
    return dtypes is not None and [text_of(name) for name in np.atleast_1d(dtypes)] == ["torch.bfloat16"]


def _flag(attributes: Any, key: str) -> bool:
    return key in attributes and bool(np.all(attributes[key]))


def text_of(value: Any) -> str:
    """Return an attribute as text; empty for None."""
    if value is None:
        return ""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def attribute_text(file: Any, name: str) -> str | int | float | None:
    """Return an attribute of the root group for JSON: a number, or anything else as text; None if there is none."""
    value = file.attrs.get(name)
    number = value.item() if isinstance(value, np.generic) else value
    if number is None or isinstance(number, int | float):
        return number
    return text_of(number)


def object_bytes(file: Any, names: Sequence[str]) -> bytes | None:
    """Return the pickle that the first of some objects has; None if none has one.

    Raises:
        ValueError: If its bytes are damaged.
    """
    for node in filter(None, (file.get(name) for name in names)):
        if "object_value" in node.attrs:
            return bytes.fromhex(text_of(node.attrs["object_value"]))
        if "__BYTES__" in node.attrs:
            return np.asarray(node.attrs["__BYTES__"]).tobytes()
    return None
