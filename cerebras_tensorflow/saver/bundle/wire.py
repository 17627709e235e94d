"""The protocol-buffer wire format, as far as checkpoint metadata needs it: varints, (field number, value) pairs."""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


def encode_varint(value: int) -> bytes:
    """Return an integer as a base-128 varint; negative ones as 64-bit two's complement.

    >>> encode_varint(300).hex()
    'ac02'
    """
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return (value, position after it) of the unsigned varint at a position.

    Raises:
        ValueError: If it is cut short or longer than 64 bits.
    """
    value = shift = 0
    while True:
        if position >= len(data):
            raise ValueError(f"varint is cut short at byte {position}")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift > 63:
            raise ValueError(f"varint before byte {position} is longer than 64 bits")
    if value >> 64:
        raise ValueError(f"varint before byte {position} exceeds 64 bits")
    return value, position


def as_signed(value: int) -> int:
    """Return a decoded varint as the int64 that it encodes.

    >>> as_signed(decode_varint(encode_varint(-1), 0)[0])
    -1
    """
    return value - (1 << 64) if value >> 63 else value


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (field number, value) of a message: int for numbers, bytes for strings and sub-messages.

    Raises:
        ValueError: If the message is malformed.
    """
    position = 0
    while position < len(message):
        tag, position = decode_varint(message, position)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            value, position = decode_varint(message, position)
            yield number, value
            continue
        if kind == BYTES:
            size, position = decode_varint(message, position)
        elif kind in (FIXED32, FIXED64):
            size = 4 if kind == FIXED32 else 8
        else:
            raise ValueError(f"unknown wire type {kind} of field {number}")
        chunk = message[position : position + size]
        if len(chunk) != size:
            raise ValueError(f"field {number} is cut short: {len(chunk)} of {size} bytes")
        position += size
        yield number, chunk if kind == BYTES else int.from_bytes(chunk, "little")


def varint_field(number: int, value: int) -> bytes:
    """Return a number field; empty for zero, as in proto3."""
    return encode_varint(number << 3 | VARINT) + encode_varint(value) if value else b""


def fixed32_field(number: int, value: int) -> bytes:
    """Return a fixed32 field; empty for zero, as in proto3."""
    return encode_varint(number << 3 | FIXED32) + value.to_bytes(4, "little") if value else b""


def bytes_field(number: int, value: bytes) -> bytes:
    """Return a string or sub-message field, even if it is empty."""
    return encode_varint(number << 3 | BYTES) + encode_varint(len(value)) + value
