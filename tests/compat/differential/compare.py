"""Compares what a scenario did on ours with what it did on TensorFlow 2.15."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

TOLERANCE = 2e-5
_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|inf|nan)(?!\w)")


def differences(theirs: Any, ours: Any, place: str = "") -> Iterator[str]:
    """Yield one line for each difference between two recorded outcomes."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in sorted({*theirs, *ours}):
            where = f"{place}.{key}" if place else key
            if key not in theirs:
                yield f"{where}: ours only: {_short(ours[key])}"
            elif key not in ours:
                yield f"{where}: theirs only: {_short(theirs[key])}"
            elif key in ("raised", "raises"):
                yield from _kind_differences(theirs[key], ours[key], where)
            elif key == "text":
                yield from _text_differences(theirs[key], ours[key], where)
            else:
                yield from differences(theirs[key], ours[key], where)
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        for index, (one, other) in enumerate(zip(theirs, ours, strict=True)):
            yield from differences(one, other, f"{place}[{index}]")
    elif isinstance(theirs, list) and isinstance(ours, list):
        missing = [item for item in theirs if item not in ours]
        added = [item for item in ours if item not in theirs]
        yield f"{place}: {len(theirs)} items, ours {len(ours)}; missing {_short(missing)}; added {_short(added)}"
    elif not _same(theirs, ours):
        yield f"{place}: {_short(theirs)}, ours {_short(ours)}"


def _kind_differences(theirs: list[str], ours: list[str], place: str) -> Iterator[str]:
    """Compare exceptions. Ours may be a subclass."""
    if theirs[0] not in ours:
        yield f"{place}: {theirs[0]}, ours {ours[0]}"


def _text_differences(theirs: str, ours: str, place: str) -> Iterator[str]:
    """Compare texts of errors. Ours may say more, before it or after it."""
    if theirs.rstrip(".") not in ours:
        yield f"{place}: {_short(theirs)}, ours {_short(ours)}"


def _same(theirs: Any, ours: Any) -> bool:
    if isinstance(theirs, str) and isinstance(ours, str):
        if _NUMBER.sub("#", theirs) != _NUMBER.sub("#", ours):
            return False
        pairs = zip(_NUMBER.findall(theirs), _NUMBER.findall(ours), strict=True)
        return all(_close(float(one), float(other)) for one, other in pairs)
    if isinstance(theirs, float) and isinstance(ours, (float, int)) and not isinstance(ours, bool):
        return _close(theirs, float(ours))
    return bool(theirs == ours)


def _close(theirs: float, ours: float) -> bool:
    if math.isnan(theirs):
        return math.isnan(ours)
    return math.isclose(theirs, ours, rel_tol=TOLERANCE, abs_tol=TOLERANCE)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}..."
