"""The meaning of a dataset in another writer's HDF5 file: a tensor, a scalar, a string, or nothing that we load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import h5py
import ml_dtypes
import numpy as np

from cerebras_tensorflow.errors import CorruptCheckpointError
from cerebras_tensorflow.saver.hdf5 import format as h5_format
from cerebras_tensorflow.saver.hdf5.index import ALWAYS_ALLOWED_BYTES, MAX_EXPANSION
from cerebras_tensorflow.saver.interface import TensorEntry

_ARRAY_TYPES = {"NumpyArrayH5Type", "TorchTensorH5Type", "NumpyArraySerializer", "TorchTensorSerializer"}
_FULL_TYPES = {"FullTensorH5Type", "DeferredFullTensor"}


@dataclass(frozen=True)
class Item:
    """A tensor: either a dataset and the type of its stored bits, or a small value in memory."""

    entry: TensorEntry
    link: str = ""
    view: np.dtype[Any] | None = None
    value: np.ndarray[Any, Any] | None = None


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
        return Item(TensorEntry(np.dtype(object), shape, num_stored), path, np.dtype("u1"))
    if element_type:
        view = h5_format.dtype_named(element_type)
        return Item(TensorEntry(view, dataset.shape, num_stored), path, np.dtype("u1"))
    if _is_bfloat16(attributes):
        if dtype.itemsize != 2 or dtype.kind not in "iu":
            return f"marked as bfloat16, but stored as {dtype}"
        # Read the bits as the stored type: between signed and unsigned, HDF5 would convert values, not bits.
        bits = dtype.newbyteorder("<")
        return Item(TensorEntry(np.dtype(ml_dtypes.bfloat16), dataset.shape, num_stored), path, bits)
    if h5py.check_string_dtype(dtype) is not None or dtype.kind == "S":
        return Item(TensorEntry(np.dtype(object), dataset.shape, num_stored), path)
    plain = np.dtype(h5_format.type_name(dtype.newbyteorder("=")))
    return Item(TensorEntry(plain, dataset.shape, num_stored), path)


def _full(attributes: Any) -> Item | str:
    try:
        shape = tuple(int(dim) for dim in np.atleast_1d(attributes["shape"]))
        value = np.asarray(attributes["fill_value"])
    except (KeyError, TypeError, ValueError):
        return "a constant whose shape is pickled, which is never loaded"
    if value.dtype.kind not in "biuf" or h5_format.num_elements(shape) * value.itemsize > ALWAYS_ALLOWED_BYTES:
        return f"a constant of shape {shape} that is too large to expand"
    return small(np.full(shape, value))


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
