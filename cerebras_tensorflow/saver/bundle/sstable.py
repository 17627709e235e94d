"""Sorted string tables in LevelDB's layout: the container of a tensor bundle's index file."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from cerebras_tensorflow.saver.bundle.snappy import decompress, uncompressed_size
from cerebras_tensorflow.saver.bundle.wire import decode_varint, encode_varint
from cerebras_tensorflow.saver.files.checksum import crc32c, mask, unmask

_MAGIC = 0xDB4775248B80FB57
_FOOTER_BYTES = 48
_TRAILER_BYTES = 5
_RAW, _SNAPPY = 0, 1
# TensorFlow's table options: the block size, and the number of keys between two restarts of the prefix compression.
_BLOCK_BYTES = 256 * 1024
_RESTART_INTERVAL = 16
# Every 16th key is stored whole, so shared prefixes expand at most 16 times. Snappy may double that.
_MAX_EXPANSION = 32
_ALWAYS_ALLOWED_BYTES = 64 << 20


class _Expansion:
    """Limits how many bytes a whole table may expand to, through compression and shared prefixes."""

    def __init__(self, num_bytes: int) -> None:
        self._left = max(_MAX_EXPANSION * num_bytes, _ALWAYS_ALLOWED_BYTES)

    def take(self, num_bytes: int) -> None:
        """Count more bytes.

        Raises:
            ValueError: If the total is more than a valid table of this size can have.
        """
        self._left -= num_bytes
        if self._left < 0:
            raise ValueError("its keys and blocks expand to far more than the file: damaged or hostile")


def read_table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the (key, value) pairs of a whole table file in key order, after comparing each block with its CRC.

    Raises:
        ValueError: If the file is not a table, is truncated or damaged; the text says where.
    """
    if len(data) < _FOOTER_BYTES:
        raise ValueError(f"{len(data)} bytes are too few for a table; the footer alone has {_FOOTER_BYTES}")
    footer = data[-_FOOTER_BYTES:]
    (magic,) = struct.unpack_from("<Q", footer, 40)
    if magic != _MAGIC:
        raise ValueError(f"the last 8 bytes are {magic:#018x}, expected the table magic {_MAGIC:#018x}")
    meta_offset, position = decode_varint(footer, 0)
    meta_size, position = decode_varint(footer, position)
    index_offset, position = decode_varint(footer, position)
    index_size, position = decode_varint(footer, position)
    if any(footer[position:40]):
        raise ValueError("the padding of the footer is not zero")
    expansion = _Expansion(len(data))
    _read_block(data, meta_offset, meta_size, expansion)
    previous: bytes | None = None
    expected_offset = 0
    for _, handle in _block_entries(_read_block(data, index_offset, index_size, expansion), expansion):
        offset, end = decode_varint(handle, 0)
        size, _ = decode_varint(handle, end)
        if offset != expected_offset:
            raise ValueError(f"a block is at byte {offset}, expected at byte {expected_offset}")
        expected_offset = offset + size + _TRAILER_BYTES
        for key, value in _block_entries(_read_block(data, offset, size, expansion), expansion):
            if previous is not None and key <= previous:
                raise ValueError(f"keys out of order: {key!r} after {previous!r}")
            previous = key
            yield key, value


def _read_block(data: bytes, offset: int, size: int, expansion: _Expansion) -> bytes:
    end = offset + size
    if end + _TRAILER_BYTES > len(data) - _FOOTER_BYTES:
        raise ValueError(f"block of {size} bytes at {offset} does not fit the file of {len(data)} bytes")
    kind = data[end]
    stored = unmask(int.from_bytes(data[end + 1 : end + _TRAILER_BYTES], "little"))
    actual = crc32c(data[offset : end + 1])
    if stored != actual:
        raise ValueError(f"block at byte {offset}: checksum {actual:#010x}, the file says {stored:#010x}")
    block = data[offset:end]
    if kind == _SNAPPY:
        expansion.take(uncompressed_size(block))
        return decompress(block)
    if kind != _RAW:
        raise ValueError(f"block at byte {offset}: unknown compression {kind}")
    return block


def _block_entries(block: bytes, expansion: _Expansion) -> Iterator[tuple[bytes, bytes]]:
    if len(block) < 4:
        raise ValueError("a block is too short for its restart count")
    (num_restarts,) = struct.unpack_from("<I", block, len(block) - 4)
    end = len(block) - 4 - 4 * num_restarts
    if end < 0:
        raise ValueError(f"a block of {len(block)} bytes declares {num_restarts} restarts")
    position = 0
    key = b""
    while position < end:
        shared, position = decode_varint(block, position)
        unshared, position = decode_varint(block, position)
        value_size, position = decode_varint(block, position)
        value_start = position + unshared
        if shared > len(key) or value_start + value_size > end:
            raise ValueError("an entry extends past its block")
        expansion.take(shared + unshared)
        key = key[:shared] + block[position:value_start]
        position = value_start + value_size
        yield key, block[value_start:position]


def write_table(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return a table file of (key, value) pairs, which must be in strictly increasing key order."""
    out = bytearray()
    handles: list[tuple[bytes, bytes]] = []
    block = _BlockBuilder(_RESTART_INTERVAL)
    for key, value in pairs:
        block.add(key, value)
        if len(block) >= _BLOCK_BYTES:
            handles.append((key, _append_block(out, block.finish())))
            block = _BlockBuilder(_RESTART_INTERVAL)
    if len(block):
        handles.append((block.last_key, _append_block(out, block.finish())))
    meta_handle = _append_block(out, _BlockBuilder(1).finish())
    index = _BlockBuilder(1)
    for key, handle in handles:
        index.add(key, handle)
    index_handle = _append_block(out, index.finish())
    out += (meta_handle + index_handle).ljust(40, b"\0") + struct.pack("<Q", _MAGIC)
    return bytes(out)


class _BlockBuilder:
    """The entries of one block. A key is stored as its difference from the previous key."""

    def __init__(self, restart_interval: int) -> None:
        self._interval = restart_interval
        self._data = bytearray()
        self._restarts = [0]
        self._since_restart = 0
        self.last_key = b""

    def __len__(self) -> int:
        return len(self._data)

    def add(self, key: bytes, value: bytes) -> None:
        shared = 0
        if self._since_restart == self._interval:
            self._restarts.append(len(self._data))
            self._since_restart = 0
        elif self._data:
            shared = _common_prefix(self.last_key, key)
        unshared = key[shared:]
        self._data += encode_varint(shared) + encode_varint(len(unshared)) + encode_varint(len(value))
        self._data += unshared + value
        self.last_key = key
        self._since_restart += 1

    def finish(self) -> bytes:
        return bytes(self._data) + struct.pack(f"<{len(self._restarts) + 1}I", *self._restarts, len(self._restarts))


def _common_prefix(first: bytes, second: bytes) -> int:
    limit = min(len(first), len(second))
    if first[:limit] == second[:limit]:
        return limit
    low, high = 0, limit
    # For the long names of models, bisection on whole slices is faster than a loop over bytes.
    while low < high:
        middle = (low + high) // 2 + 1
        if first[:middle] == second[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _append_block(out: bytearray, block: bytes) -> bytes:
    """Append a block with its trailer and return its encoded handle."""
    handle = encode_varint(len(out)) + encode_varint(len(block))
    framed = block + bytes([_RAW])
    out += framed + mask(crc32c(framed)).to_bytes(4, "little")
    return handle
