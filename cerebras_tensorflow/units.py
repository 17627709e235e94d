"""Numbers with their unit, as text that a person reads."""


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


def format_seconds(seconds: float) -> str:
    """Return a duration in the unit that keeps it short.

    >>> format_seconds(0.0031)
    '3.1 ms'
    >>> format_seconds(75)
    '1 min 15 s'
    """
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"
