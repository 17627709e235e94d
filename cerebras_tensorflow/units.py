"""Formats and parses numbers with a unit, for users."""

from __future__ import annotations

import math
import re

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_UNITS |= {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", re.IGNORECASE)


def format_bytes(num_bytes: float) -> str:
    """Return a byte count in decimal units.

    >>> format_bytes(999)
    '999 B'
    >>> format_bytes(15_800_000_000)
    '15.8 GB'
    """
    value = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1000:
            return f"{value:.0f} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def format_bytes_up(num_bytes: float) -> str:
    """Return a byte count in decimal units, rounded up to one digit, so that `parse_size` gives at least the same size.

    >>> format_bytes(2_310_000_000), format_bytes_up(2_310_000_000)
    ('2.3 GB', '2.4 GB')
    >>> format_bytes_up(999.5)
    '1.0 kB'
    """
    value = math.ceil(num_bytes)
    for unit, size in (("kB", 10**3), ("MB", 10**6), ("GB", 10**9), ("TB", 10**12)):
        tenths = -(-10 * value // size)
        if tenths < 10_000 or unit == "TB":
            return f"{value} B" if value < 1000 else f"{tenths // 10}.{tenths % 10} {unit}"
    raise AssertionError("every size has a unit")


def format_seconds(seconds: float) -> str:
    """Return a duration in the unit that keeps it short.

    >>> format_seconds(0.0031)
    '3.1 ms'
    >>> format_seconds(75)
    '1 min 15 s'
    >>> format_seconds(31e-6)
    '31.0 us'
    """
    if 0 < seconds < 1e-4:
        return f"{seconds * 1e6:.1f} us"
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"


def parse_size(text: str) -> int:
    """Return a size with a unit as bytes.

    Raises:
        ValueError: If the text is not a size.

    >>> parse_size("1.5GB"), parse_size("64MiB")
    (1500000000, 67108864)
    """
    match = _SIZE.fullmatch(text)
    if match is None or match[2].lower() not in _UNITS:
        raise ValueError(f"{text!r} is not a size; expected a number with a unit, as in 500MB or 2GiB")
    return round(float(match[1]) * _UNITS[match[2].lower()])
