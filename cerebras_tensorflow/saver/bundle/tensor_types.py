"""TensorFlow's numbered element types and their NumPy counterparts."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

STRING = 7

# Number in types.proto -> element type. Quantized types are plain integers to NumPy.
_DTYPES: dict[int, Any] = {
    1: np.float32,
    2: np.float64,
    3: np.int32,
    4: np.uint8,
    5: np.int16,
    6: np.int8,
    7: np.object_,
    8: np.complex64,
    9: np.int64,
    10: np.bool_,
    14: ml_dtypes.bfloat16,
    17: np.uint16,
    18: np.complex128,
    19: np.float16,
    22: np.uint32,
    23: np.uint64,
    24: ml_dtypes.float8_e5m2,
    25: ml_dtypes.float8_e4m3fn,
    29: ml_dtypes.int4,
    30: ml_dtypes.uint4,
    # For reading only: these have the same NumPy types as numbers above.
    11: np.int8,
    12: np.uint8,
    13: np.int32,
    15: np.int16,
    16: np.uint16,
}
_READ_ONLY = {11, 12, 13, 15, 16}
# TensorFlow types whose values are objects of a running program, not numbers.
UNSUPPORTED = {20: "resource", 21: "variant"}
_NUMBERS = {np.dtype(dtype): number for number, dtype in _DTYPES.items() if number not in _READ_ONLY}


def dtype_of(number: int) -> np.dtype[Any]:
    """Return the NumPy type of a TensorFlow type number.

    Raises:
        ValueError: If NumPy has no such type (variant and resource tensors, unknown numbers).
    """
    if number not in _DTYPES:
        raise ValueError(f"element type {UNSUPPORTED.get(number, number)} has no NumPy counterpart")
    return np.dtype(_DTYPES[number])


def number_of(dtype: np.dtype[Any]) -> int:
    """Return the TensorFlow type number of a NumPy type; strings of any NumPy kind are DT_STRING.

    Raises:
        ValueError: If TensorFlow has no such type; lists the types that it has.
    """
    if dtype.kind in "SUO":
        return STRING
    number = _NUMBERS.get(dtype.newbyteorder("="))
    if number is None:
        known = ", ".join(sorted(str(known) for known in _NUMBERS if known != np.dtype(np.object_)))
        raise ValueError(f"a TensorFlow checkpoint cannot hold elements of type {dtype}; it can hold {known}, strings")
    return number


def is_string(dtype: np.dtype[Any]) -> bool:
    """Whether elements of this type are strings of varying length."""
    return dtype.kind in "SUO"
