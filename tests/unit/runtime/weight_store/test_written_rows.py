"""Which rows of a weight have a value."""

from __future__ import annotations

import numpy as np
import pytest

from cerebras_tensorflow.errors import StoreError
from cerebras_tensorflow.graph.program import WeightSpec
from cerebras_tensorflow.runtime.weight_store.written_rows import WrittenRows

SPECS = (
    WeightSpec("kernel", "float32", (6, 2), 48),
    WeightSpec("scalar", "float32", (), 4),
    WeightSpec("empty", "float32", (0, 4), 0),
)


def test_only_written_rows_pass_the_check() -> None:
    rows = WrittenRows(SPECS)
    with pytest.raises(StoreError, match="kernel was never written"):
        rows.check(0)
    rows.note(0, 2, 4)
    rows.check(0, slice(2, 4))
    rows.check(0, np.array([3, 2, 3]))
    for other in (slice(1, 3), np.array([2, 5]), slice(None)):
        with pytest.raises(StoreError, match="kernel was never written"):
            rows.check(0, other)
    assert rows.complete() == frozenset()
    rows.note(0, 0, 2)
    rows.note(0, 4, 6)
    rows.check(0)
    assert rows.complete() == {0}


def test_a_scalar_has_one_row_and_an_empty_weight_none() -> None:
    rows = WrittenRows(SPECS)
    for index in (1, 2):
        with pytest.raises(StoreError, match="was never written"):
            rows.check(index)
    rows.note(1, 0, 1)
    rows.note(2, 0, 0)
    rows.check(1)
    rows.check(2)


def test_a_whole_weight_needs_one_note() -> None:
    rows = WrittenRows(SPECS)
    rows.note(0, 1, 2)
    rows.note_all(0)
    rows.check(0)
