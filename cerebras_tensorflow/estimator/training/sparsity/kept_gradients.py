"""Keeps the gradients of a step until it has ended, when the masks of sparse weights change.

Each gradient goes into a scratch file without a name as soon as it is computed, so a step that changes masks needs no
more memory than any other. Up to 64 MB in total stay in memory. In a step in micro-batches, TensorFlow returns the
gradients instead: their totals are kept for the update anyway.
"""

from __future__ import annotations

import functools
import tempfile
import threading
from collections.abc import Mapping, Sequence
from typing import IO, Any, NamedTuple

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.errors import StoreError
from cerebras_tensorflow.estimator.model.sparse_weights import SparseWeight

_MEMORY_BYTES = 64 << 20


class _Rows(NamedTuple):
    """Gradients of some rows of a weight, as IndexedSlices."""

    values: np.ndarray
    indices: np.ndarray


class KeptGradients:
    """The dense gradients of one step.

    Args:
        weights: Name -> the weights whose gradients are wanted.
        folder: Folder for the scratch file.
        calls_python: Whether the step may call Python. If not, the run returns the gradients.
    """

    def __init__(self, weights: Mapping[str, SparseWeight], folder: str, calls_python: bool) -> None:
        self._weights = weights
        self._folder = folder
        self._calls_python = calls_python
        self._calls: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None
        self._places: dict[str, int] = {}
        self._returned: Mapping[str, Any] = {}
        self._error: OSError | None = None

    def add_ops(self) -> None:
        """Add the ops that take the gradients to the default graph. They run only if they are fetched."""
        if not self._calls_python:
            return
        for name, weight in self._weights.items():
            tensors = [
                tensor
                for one in weight.gradients
                for tensor in ([one.values, one.indices] if isinstance(one, tf.IndexedSlices) else [one])
            ]
            self._calls[name] = tf.numpy_function(functools.partial(self._take, weight), tensors, tf.int32)

    def fetches(self, names: Sequence[str]) -> dict[str, Any]:
        """Forget the last step. Return what the next one fetches to keep the gradients of some weights."""
        self.forget()
        return {name: self._calls.get(name, list(self._weights[name].gradients)) for name in names}

    def note(self, results: Mapping[str, Any]) -> None:
        """Take what the step has returned for `fetches`.

        Raises:
            StoreError: If the scratch file could not be written.
        """
        if self._error is not None:
            raise StoreError(
                f"the gradients for the next masks do not fit into a scratch file in {self._folder}: {self._error}. "
                "Free some space on this disk, or use set, which needs no gradients"
            ) from self._error
        self._returned = results if not self._calls else {}

    def read(self, name: str) -> np.ndarray | None:
        """Return the dense gradient of a weight, float32; None if the last step has not kept it."""
        weight = self._weights[name]
        if name in self._returned:
            return _dense(self._returned[name], weight.shape)
        if name not in self._places or self._file is None:
            return None
        size = 4 * int(np.prod(weight.shape))
        self._file.seek(self._places[name])
        return np.frombuffer(self._file.read(size), np.float32).reshape(weight.shape)

    def forget(self) -> None:
        """Free what the last step has kept."""
        file, self._file = self._file, None
        self._places, self._returned, self._error = {}, {}, None
        if file is not None:
            file.close()

    def _take(self, weight: SparseWeight, *parts: np.ndarray) -> np.int32:
        """Write a gradient into the scratch file, in the step. TensorFlow calls this in any thread."""
        pending = list(parts)
        gradients = [
            _Rows(pending.pop(0), pending.pop(0)) if isinstance(one, tf.IndexedSlices) else pending.pop(0)
            for one in weight.gradients
        ]
        total = _dense(gradients, weight.shape)
        with self._lock:
            try:
                if self._file is None:
                    self._file = tempfile.SpooledTemporaryFile(_MEMORY_BYTES, dir=self._folder)  # noqa: SIM115 - `forget` closes it
                self._places[weight.name] = self._file.seek(0, 2)
                self._file.write(total.data)
            except OSError as error:  # `note` raises it
                self._error = error
        return np.int32(0)


def _dense(gradients: Sequence[Any], shape: tuple[int, ...]) -> np.ndarray:
    """Return the sum of gradients, some of which may be IndexedSlices."""
    if len(gradients) == 1 and getattr(gradients[0], "indices", None) is None:
        return np.ascontiguousarray(gradients[0], np.float32)
    total = np.zeros(shape, np.float32)
    for gradient in gradients:
        rows = getattr(gradient, "indices", None)
        if rows is None:
            total += gradient
        else:
            np.add.at(total, rows, np.asarray(gradient.values, np.float32))
    return total
