"""Keys of the pieces of a partitioned tensor: the order-preserving encodings of TensorFlow's checkpoints."""

from __future__ import annotations

# Extent of a piece along one dim: (start, length); length -1 means the whole dim.
Extent = tuple[int, int]


def slice_key(name: bytes, extents: tuple[Extent, ...]) -> bytes:
    """Return the index key of one piece of a tensor.

    Source:
        tensorflow/core/util/saved_tensor_slice_util (format): 0, name, number of dims, then start and length of each.
    """
    parts = [_unsigned(0), _string(name), _unsigned(len(extents))]
    for start, length in extents:
        parts += [_signed(start), _signed(length)]
    return b"".join(parts)


def _unsigned(value: int) -> bytes:
    body = value.to_bytes((value.bit_length() + 7) // 8, "big")
    return bytes([len(body)]) + body


def _string(value: bytes) -> bytes:
    if b"\x00" in value:
        raise ValueError(f"a tensor name cannot contain a NUL: {value!r}")
    return value.replace(b"\xff", b"\xff\x00") + b"\x00\x01"


def _signed(value: int) -> bytes:
    """Return a signed integer as its length in leading one-bits (zero-bits if negative), then big-endian bits."""
    magnitude = ~value if value < 0 else value
    num_bytes = magnitude.bit_length() // 7 + 1
    header = ((1 << num_bytes) - 1) << (num_bytes * 8 - num_bytes)
    return ((value & ((1 << (num_bytes * 8)) - 1)) ^ header).to_bytes(num_bytes, "big")
