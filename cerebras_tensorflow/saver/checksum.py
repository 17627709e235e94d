"""CRC-32C (Castagnoli) of bytes-like objects, and the masked form that TensorFlow stores."""

from __future__ import annotations

import google_crc32c

from cerebras_tensorflow.saver.interface import BytesLike, flat_view

_MASK_DELTA = 0xA282EAD8


def crc32c(data: BytesLike, crc: int = 0) -> int:
    """Return the CRC-32C of data, continuing from an earlier value.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    >>> crc32c(b"6789", crc32c(b"12345")) == crc32c(b"123456789")
    True
    """
    # The extension accepts read-only buffers or arrays, so everything else passes as a view.
    if isinstance(data, bytes):
        return int(google_crc32c.extend(crc, data))
    view = flat_view(data)
    return int(google_crc32c.extend(crc, view)) if view.size else crc


def mask(crc: int) -> int:
    """Return the stored form of a CRC, so that the CRC of data with embedded CRCs keeps its strength (as LevelDB)."""
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def unmask(masked: int) -> int:
    """Return the CRC of a stored form.

    >>> unmask(mask(0x12345678)) == 0x12345678
    True
    """
    rotated = (masked - _MASK_DELTA) & 0xFFFFFFFF
    return ((rotated >> 17) | (rotated << 15)) & 0xFFFFFFFF
