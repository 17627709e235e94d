"""CRC-32C (Castagnoli) of bytes-like objects, and the masked form that TensorFlow stores."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import google_crc32c

from cerebras_tensorflow.saver.interface import BytesLike, flat_view

_MASK_DELTA = 0xA282EAD8
# awscrt is twice as fast for long inputs (wide registers) and lets other threads run, but takes 30 ms to load.
_LONG_BYTES = 128 << 10
_POLYNOMIAL = 0x82F63B78  # Castagnoli's polynomial, bits reversed: bit 31 is the coefficient of x^0


def crc32c(data: BytesLike, crc: int = 0) -> int:
    """Return the CRC-32C of data, continuing from an earlier value.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    >>> crc32c(b"6789", crc32c(b"12345")) == crc32c(b"123456789")
    True
    """
    if isinstance(data, bytes) and len(data) < _LONG_BYTES:
        return int(google_crc32c.extend(crc, data))
    # google_crc32c accepts bytes and arrays only, so pass anything else as an array view.
    view = flat_view(data)
    if view.size >= _LONG_BYTES:
        return _crc32c_of_long()(view, crc)
    return int(google_crc32c.extend(crc, view)) if view.size else crc


@functools.cache
def _crc32c_of_long() -> Callable[[Any, int], int]:
    """Return a function of (bytes, earlier CRC) that is fast for long inputs."""
    try:
        from awscrt.checksums import crc32c as fast
    except ImportError:
        # No wheel for this machine.
        return lambda data, crc: int(google_crc32c.extend(crc, data))
    return lambda data, crc: int(fast(data, crc))


def mask(crc: int) -> int:
    """Return the stored form of a CRC. As in LevelDB: a CRC over data that contains plain CRCs detects fewer errors."""
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def unmask(masked: int) -> int:
    """Return the CRC from its stored form.

    >>> unmask(mask(0x12345678)) == 0x12345678
    True
    """
    rotated = (masked - _MASK_DELTA) & 0xFFFFFFFF
    return ((rotated >> 17) | (rotated << 15)) & 0xFFFFFFFF


def combine(first: int, second: int, second_bytes: int) -> int:
    """Return the CRC-32C of two consecutive runs of bytes, from the CRC of each.

    Source:
        Appending n zero bytes multiplies the CRC by x^(8 n) modulo the polynomial; CRCs are linear.

    >>> combine(crc32c(b"1234"), crc32c(b"56789"), 5) == crc32c(b"123456789")
    True
    """
    return _product(_power(second_bytes), first) ^ second


@functools.lru_cache(4096)
def _power(num_bytes: int) -> int:
    """Return x^(8 n) modulo the polynomial."""
    power, square, bits = 1 << 31, 1 << 30, 8 * num_bytes
    while bits:
        if bits & 1:
            power = _product(power, square)
        square = _product(square, square)
        bits >>= 1
    return power


def _product(left: int, right: int) -> int:
    """Return the product of two polynomials modulo the CRC's polynomial."""
    result = 0
    for bit in range(31, -1, -1):
        if left >> bit & 1:
            result ^= right
        right = (right >> 1) ^ _POLYNOMIAL if right & 1 else right >> 1
    return result
