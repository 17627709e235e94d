"""Cuts a batch into micro-batches."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np


def parts_of_batch(batch: Mapping[str, np.ndarray], count: int) -> list[dict[str, np.ndarray]]:
    """Return the micro-batches of a batch, in order, as views. A scalar goes into each.

    >>> parts_of_batch({"x": np.arange(4), "scale": np.array(2)}, 2)[1]
    {'x': array([2, 3]), 'scale': array(2)}
    """
    if count == 1:
        return [dict(batch)]
    parts: list[dict[str, np.ndarray]] = [{} for _ in range(count)]
    for name, value in batch.items():
        size = len(value) // count if np.ndim(value) else 0
        for number, part in enumerate(parts):
            part[name] = value[number * size : (number + 1) * size] if np.ndim(value) else value
    return parts
