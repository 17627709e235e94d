"""Tracks which rows of each weight have a value."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cerebras_tensorflow.graph.program import WeightSpec
from cerebras_tensorflow.runtime.weight_store.failures import never_written


class WrittenRows:
    """Remembers which rows were written. A read of any other row must be an error and not return zeros.

    Args:
        specs: The weights. At first, none of their rows has a value.
    """

    def __init__(self, specs: Sequence[WeightSpec]) -> None:
        self._specs = tuple(specs)
        self._is_whole = [False] * len(self._specs)
        self._masks: dict[int, npt.NDArray[np.bool_]] = {}  # of partly written weights
        self._lock = threading.Lock()

    def note_all(self, index: int) -> None:
        """Note that a whole weight was written."""
        with self._lock:
            self._is_whole[index] = True
            self._masks.pop(index, None)

    def note(self, index: int, start: int, stop: int) -> None:
        """Note that rows [start, stop) were written."""
        if self._is_whole[index]:
            return
        with self._lock:
            mask = self._masks.get(index)
            if mask is None:
                mask = self._masks[index] = np.zeros(num_rows(self._specs[index]), np.bool_)
            mask[start:stop] = True
            if mask.all():
                self._is_whole[index] = True
                del self._masks[index]

    def complete(self) -> frozenset[int]:
        """Return the weights whose rows have all been written."""
        return frozenset(index for index, is_whole in enumerate(self._is_whole) if is_whole)

    def check(self, index: int, rows: slice | npt.NDArray[np.integer] = slice(None)) -> None:
        """Check that rows were written. By default, check all rows.

        Raises:
            StoreError: If a row was not written.
        """
        if self._is_whole[index]:
            return
        with self._lock:
            mask = self._masks.get(index)
            is_there = self._is_whole[index] or (mask is not None and bool(mask[rows].all()))
        if not is_there:
            raise never_written(self._specs[index])


def num_rows(spec: WeightSpec) -> int:
    """Return the length of a weight's first axis; a scalar has one row."""
    return spec.shape[0] if spec.shape else 1
