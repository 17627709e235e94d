"""Gradients stay in a scratch file between the step that computes them and the change of masks after it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from cerebras_tensorflow.errors import StoreError
from cerebras_tensorflow.estimator.model.sparse_weights import SparseWeight
from cerebras_tensorflow.estimator.training.sparsity import kept_gradients
from cerebras_tensorflow.estimator.training.sparsity.kept_gradients import KeptGradients

SHAPE = (4, 3)


@pytest.fixture
def weights() -> Iterator[dict[str, SparseWeight]]:
    """One weight with a dense gradient, one with a dense gradient and one of rows, in the default graph."""
    with tf.Graph().as_default():
        dense = tf.reshape(tf.range(12.0), SHAPE)
        rows = tf.IndexedSlices(tf.ones((3, 3)), tf.constant([1, 1, 3]), tf.constant(SHAPE))
        gradients = {"a": (dense,), "b": (dense, rows)}
        yield {name: SparseWeight(name, f"{name}_mask", SHAPE, (), None, each) for name, each in gradients.items()}


@pytest.mark.parametrize("calls_python", [True, False])
def test_gradients_are_read_back_after_the_step(
    calls_python: bool, weights: dict[str, SparseWeight], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_gradients, "_MEMORY_BYTES", 1)
    kept = KeptGradients(weights, str(tmp_path), calls_python)
    kept.add_ops()
    expected = np.arange(12, dtype=np.float32).reshape(SHAPE)
    with tf.compat.v1.Session() as session:
        for wanted in (["a", "b"], ["b"], []):
            kept.note(session.run(kept.fetches(wanted)))
            assert [name for name in weights if kept.read(name) is not None] == wanted
            if "a" in wanted:
                np.testing.assert_array_equal(kept.read("a"), expected)
            if "b" in wanted:
                np.testing.assert_array_equal(kept.read("b"), expected + np.array([[0], [2], [0], [1]]))
    kept.forget()
    assert kept.read("b") is None
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_named(weights: dict[str, SparseWeight], tmp_path: Path) -> None:
    kept = KeptGradients(weights, str(tmp_path), calls_python=True)
    kept.add_ops()
    full = mock.patch("tempfile.SpooledTemporaryFile", side_effect=OSError(28, "No space left on device"))
    with full, tf.compat.v1.Session() as session:
        results = session.run(kept.fetches(["a"]))
    with pytest.raises(StoreError, match=rf"do not fit into a scratch file in {tmp_path}: .*No space left"):
        kept.note(results)
