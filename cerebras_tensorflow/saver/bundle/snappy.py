"""Decompression of Snappy blocks, which an index from other tools may contain."""

from __future__ import annotations

from cerebras_tensorflow.saver.bundle.wire import decode_varint

# A copy instruction of two bytes yields at most 64 bytes, so no block expands more than this.
_MAX_RATIO = 64


def decompress(data: bytes) -> bytes:
    """Return the original bytes of a raw Snappy block.

    Raises:
        ValueError: If the block is malformed, or declares more bytes than it can expand to.

    Source:
        format_description.txt of the Snappy project.

    >>> decompress(bytes([6, 0b100, ord("a"), ord("b"), 0b1 | 0 << 2, 2]))
    b'ababab'
    """
    size, position = uncompressed_size(data), decode_varint(data, 0)[1]
    out = bytearray()
    while position < len(data):
        tag = data[position]
        position += 1
        kind, high = tag & 3, tag >> 2
        if kind == 0:
            position, length = _literal_length(data, position, high)
            if position + length > len(data):
                raise ValueError("snappy literal is cut short")
            out += data[position : position + length]
            position += length
        else:
            num_offset_bytes = (0, 1, 2, 4)[kind]
            raw = data[position : position + num_offset_bytes]
            if len(raw) != num_offset_bytes:
                raise ValueError("snappy copy is cut short")
            position += num_offset_bytes
            offset = int.from_bytes(raw, "little")
            if kind == 1:
                length, offset = (high & 7) + 4, offset | (high >> 3) << 8
            else:
                length = high + 1
            _copy(out, offset, length)
        if len(out) > size:
            raise ValueError(f"snappy block holds more than the declared {size} bytes")
    if len(out) != size:
        raise ValueError(f"snappy block holds {len(out)} bytes, declared {size}")
    return bytes(out)


def uncompressed_size(data: bytes) -> int:
    """Return the size that a block declares [B].

    Raises:
        ValueError: If the block cannot expand to that size.
    """
    size, _ = decode_varint(data, 0)
    if size > _MAX_RATIO * len(data):
        raise ValueError(f"snappy block of {len(data)} bytes declares {size} bytes")
    return size


def _literal_length(data: bytes, position: int, high: int) -> tuple[int, int]:
    if high < 60:
        return position, high + 1
    num_bytes = high - 59
    return position + num_bytes, int.from_bytes(data[position : position + num_bytes], "little") + 1


def _copy(out: bytearray, offset: int, length: int) -> None:
    if not 0 < offset <= len(out):
        raise ValueError(f"snappy copy reaches {offset} bytes back with {len(out)} bytes written")
    start = len(out) - offset
    if offset >= length:
        out += out[start : start + length]
    else:
        # Overlapping copies repeat the last `offset` bytes.
        pattern = bytes(out[start:])
        out += (pattern * (length // offset + 1))[:length]
