"""Counters of slices; that slices have the bits of the whole is in tests/unit/estimator/test_initialize.py."""

from __future__ import annotations

import numpy as np

from cerebras_tensorflow.compiler.slicing.initializers import Counter


def test_a_counter_carries_into_its_upper_word() -> None:
    counter = Counter("a", "b", group=4, step=256)
    whole = np.array([2**64 - 1, 5], np.uint64)
    assert counter.value(whole, 0).tolist() == [2**64 - 1, 5]
    assert counter.value(whole, 8).tolist() == [2 * 256 - 1, 6]
