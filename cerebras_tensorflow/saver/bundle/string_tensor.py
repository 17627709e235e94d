"""The stored form of a string tensor in a bundle: all lengths, a checksum of the lengths, then the bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from cerebras_tensorflow.saver.bundle.wire import decode_varint, encode_varint
from cerebras_tensorflow.saver.files.checksum import crc32c, mask


def to_elements(array: np.ndarray[Any, Any]) -> list[bytes]:
    """Return the elements of a string array in row-major order; text as UTF-8.

    Raises:
        ValueError: If an element is neither text nor bytes.
    """
    elements = []
    for value in array.reshape(-1).tolist():
        if isinstance(value, str):
            elements.append(value.encode())
        elif isinstance(value, bytes):
            elements.append(value)
        else:
            raise ValueError(f"an element is {type(value).__name__} {value!r}; a string tensor holds str and bytes")
    return elements


def to_array(elements: Sequence[Any], shape: Sequence[int]) -> np.ndarray[Any, Any]:
    """Return the object array of a shape that has these elements in row-major order."""
    array = np.empty(len(elements), object)
    array[:] = elements
    return array.reshape(shape)


def encode(elements: Iterable[bytes]) -> tuple[bytes, int]:
    """Return (stored bytes, unmasked CRC-32C for the index)."""
    elements = list(elements)
    crc = crc32c(b"".join(_crc_of_length(len(element)) for element in elements))
    length_checksum = mask(crc).to_bytes(4, "little")
    body = b"".join(elements)
    lengths = b"".join(encode_varint(len(element)) for element in elements)
    return lengths + length_checksum + body, crc32c(body, crc32c(length_checksum, crc))


def decode(data: bytes, num_elements: int) -> tuple[list[bytes], int]:
    """Return (elements, unmasked CRC-32C) from stored bytes.

    Raises:
        ValueError: If lengths and bytes do not fit, or the lengths fail their checksum.
    """
    if num_elements > len(data):
        raise ValueError(f"{num_elements} strings declared in {len(data)} bytes")
    lengths = []
    position = 0
    for _ in range(num_elements):
        length, position = decode_varint(data, position)
        lengths.append(length)
    crc = crc32c(b"".join(_crc_of_length(length) for length in lengths))
    checksum = data[position : position + 4]
    if checksum != mask(crc).to_bytes(4, "little"):
        raise ValueError("the lengths of the strings fail their checksum")
    position += 4
    if position + sum(lengths) != len(data):
        raise ValueError(f"strings of {sum(lengths)} bytes declared, {len(data) - position} stored")
    crc = crc32c(data[position:], crc32c(checksum, crc))
    elements = []
    for length in lengths:
        elements.append(data[position : position + length])
        position += length
    return elements, crc


def _crc_of_length(length: int) -> bytes:
    # 4 bytes if they are enough, so that the CRC is the same as in files from before 64-bit lengths.
    return length.to_bytes(4 if length < 1 << 32 else 8, "little")
