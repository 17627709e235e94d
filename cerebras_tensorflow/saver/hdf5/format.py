"""How a tensor becomes an HDF5 dataset: its quoted name, stored type and attributes. FORMAT.md describes each byte."""

from __future__ import annotations

import difflib
import math
import urllib.parse
from typing import Any

import ml_dtypes
import numpy as np

H5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
COMPRESSIONS = ("none", "lz4", "gzip")

# Attributes that the published legacy reader (H5Saver, releases 1.9 to 2.4) looks for ...
LEGACY_TYPE_ATTRIBUTE = "__H5_TYPE__"
LEGACY_ARRAY_TYPE = "NumpyArrayH5Type"
BFLOAT16_ATTRIBUTE = "is_bfloat16"
# ... those of the current storage reader (0.5) ...
STORAGE_TYPE_ATTRIBUTE = "__TYPE__"
STORAGE_ARRAY_TYPE = "NumpyArraySerializer"
STORAGE_NUMPY_ATTRIBUTE = "__NUMPY__"
# ... and ours, only on datasets that neither of them could type: the element type behind raw bytes.
ELEMENT_TYPE_ATTRIBUTE = "__ELEMENT_TYPE__"
STRING_SHAPE_ATTRIBUTE = "__STRING_SHAPE__"
# On the root: this file ends with an index, so one that does not is truncated or was changed by another program.
INDEX_ATTRIBUTE = "__INDEX__"

STRING_TYPE = "string"

_NATIVE = ("bool", "float16", "float32", "float64", "complex64", "complex128")
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
# Types that HDF5 lacks, and the type that holds their bits.
_AS_BITS = {
    "bfloat16": "int16",
    "float8_e5m2": "uint8",
    "float8_e4m3fn": "uint8",
    "float8_e4m3b11fnuz": "uint8",
    "float8_e4m3fnuz": "uint8",
    "float8_e5m2fnuz": "uint8",
    "int4": "uint8",
    "uint4": "uint8",
}


def quote(name: str) -> str:
    """Return the link name of a tensor: one path component, whatever the name holds.

    >>> quote("dense/kernel:0"), quote(".")
    ('dense%2Fkernel%3A0', '%2E')
    """
    if not name:
        raise ValueError("a tensor name must not be empty")
    quoted = urllib.parse.quote(name.encode("utf-8", "surrogateescape"), safe="")
    # HDF5 reads "." as "this group"; it is the one name that the published reader cannot ask for.
    return "%2E" if quoted == "." else quoted


def unquote(link: str) -> str:
    """Return the tensor name of a link name."""
    return urllib.parse.unquote_to_bytes(link).decode("utf-8", "surrogateescape")


def type_name(dtype: np.dtype[Any]) -> str:
    """Return the name under which an element type is indexed.

    Raises:
        ValueError: If the format cannot hold it; lists what it can.
    """
    if dtype.kind in "SUO":
        return STRING_TYPE
    if dtype.name in _NATIVE or dtype.name in _INTEGERS or dtype.name in _AS_BITS:
        return dtype.name
    known = ", ".join([*_NATIVE, *_INTEGERS, *_AS_BITS])
    raise ValueError(f"an HDF5 checkpoint cannot hold elements of type {dtype}; it can hold {known}, strings")


def dtype_named(name: str) -> np.dtype[Any]:
    """Return the element type of an indexed name, little-endian.

    Raises:
        ValueError: If the name is unknown.
    """
    if name == STRING_TYPE:
        return np.dtype(object)
    if name in _AS_BITS:
        return np.dtype(getattr(ml_dtypes, name))
    if name in _NATIVE or name in _INTEGERS:
        return np.dtype(name)
    near = difflib.get_close_matches(name.replace("bf", "bfloat"), [*_AS_BITS, *_NATIVE, *_INTEGERS], 1)
    hint = f"; did you mean {near[0]!r}?" if near else "; types are called as in NumPy: float32, bfloat16, int64"
    raise ValueError(f"unknown element type {name!r}{hint}")


def stored_dtype(name: str) -> np.dtype[Any]:
    """Return the NumPy type that holds an element type's bits in the dataset."""
    if name == STRING_TYPE:
        return np.dtype("u1")
    return np.dtype(_AS_BITS.get(name, name)).newbyteorder("<")


def is_raw_bits(name: str) -> bool:
    """Whether an attribute must name the element type, because the dataset's own type does not."""
    return name == STRING_TYPE or (name in _AS_BITS and name != "bfloat16")


def num_elements(shape: tuple[int, ...]) -> int:
    """Return the product of the dims; 1 for a scalar."""
    return math.prod(shape)
