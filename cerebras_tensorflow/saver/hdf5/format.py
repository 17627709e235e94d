"""A tensor as an HDF5 dataset: its quoted name, stored type and attributes. FORMAT.md describes each byte."""

from __future__ import annotations

import math
import urllib.parse
from typing import Any

import ml_dtypes
import numpy as np

from cerebras_tensorflow.text import did_you_mean

H5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
COMPRESSIONS = ("none", "lz4", "gzip")

# Attributes for the published legacy reader (H5Saver, releases 1.9 to 2.4).
LEGACY_TYPE_ATTRIBUTE = "__H5_TYPE__"
LEGACY_ARRAY_TYPE = "NumpyArrayH5Type"
BFLOAT16_ATTRIBUTE = "is_bfloat16"
# Attributes for the current storage reader (0.5).
STORAGE_TYPE_ATTRIBUTE = "__TYPE__"
STORAGE_ARRAY_TYPE = "NumpyArraySerializer"
STORAGE_NUMPY_ATTRIBUTE = "__NUMPY__"
# Our own attributes, only on datasets of raw bytes, whose element type neither published reader has.
ELEMENT_TYPE_ATTRIBUTE = "__ELEMENT_TYPE__"
STRING_SHAPE_ATTRIBUTE = "__STRING_SHAPE__"
# On the root: the file must end with an index. If it does not, it is truncated or another program changed it.
INDEX_ATTRIBUTE = "__INDEX__"

STRING_TYPE = "string"

_NATIVE = ("bool", "float16", "float32", "float64", "complex64", "complex128")
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
# Types that HDF5 lacks, and the types that store their bits.
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
    """Return the link name of a tensor: a single path component for any name.

    >>> quote("dense/kernel:0"), quote(".")
    ('dense%2Fkernel%3A0', '%2E')
    """
    if not name:
        raise ValueError("a tensor name must not be empty")
    quoted = urllib.parse.quote(name.encode("utf-8", "surrogateescape"), safe="")
    # HDF5 reads "." as "this group". The published reader does not quote it, so it cannot load this one name.
    return "%2E" if quoted == "." else quoted


def unquote(link: str) -> str:
    """Return the tensor name of a link name."""
    return urllib.parse.unquote_to_bytes(link).decode("utf-8", "surrogateescape")


def type_name(dtype: np.dtype[Any]) -> str:
    """Return the name of an element type in the index.

    Raises:
        ValueError: If the format cannot hold it; lists the types that it can hold.
    """
    if dtype.kind in "SUO":
        return STRING_TYPE
    if dtype.name in _NATIVE or dtype.name in _INTEGERS or dtype.name in _AS_BITS:
        return dtype.name
    known = ", ".join([*_NATIVE, *_INTEGERS, *_AS_BITS])
    raise ValueError(f"an HDF5 checkpoint cannot hold elements of type {dtype}; it can hold {known}, strings")


def dtype_named(name: str) -> np.dtype[Any]:
    """Return the element type of a name in the index, little-endian.

    Raises:
        ValueError: If the name is unknown.
    """
    if name == STRING_TYPE:
        return np.dtype(object)
    if name in _AS_BITS:
        return np.dtype(getattr(ml_dtypes, name))
    if name in _NATIVE or name in _INTEGERS:
        return np.dtype(name)
    hint = did_you_mean(name, [*_AS_BITS, *_NATIVE, *_INTEGERS])
    raise ValueError(f"unknown element type {name!r}{hint or '; use NumPy names such as float32, bfloat16, int64'}")


def stored_dtype(name: str) -> np.dtype[Any]:
    """Return the NumPy type that stores an element type's bits in the dataset."""
    if name == STRING_TYPE:
        return np.dtype("u1")
    return np.dtype(_AS_BITS.get(name, name)).newbyteorder("<")


def is_raw_bits(name: str) -> bool:
    """Whether an attribute must name the element type, because the dataset's own type is only raw bytes."""
    return name == STRING_TYPE or (name in _AS_BITS and name != "bfloat16")


def num_elements(shape: tuple[int, ...]) -> int:
    """Return the product of the dims; 1 for a scalar."""
    return math.prod(shape)
