"""A snapshot of a session's variables after one step, for a checkpoint that is written while training goes on."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.graph.program import WeightSpec, dtype_from_name
from cerebras_tensorflow.runtime.host.memory import free_memory_bytes
from cerebras_tensorflow.runtime.weight_store.snapshot import OwnedElsewhere, StoreSnapshot

_COPYING_OPS = 2  # more do not make memory faster
_KEPT_SHARE = 0.5  # of free memory; larger copies are not kept between two saves


class ResidentCopies:
    """Copies resident variables into memory that it keeps from one save to the next.

    Training waits for the copy, and allocating memory takes several times as long as copying.

    Args:
        graph: The session's graph. The copying ops are added to it.
    """

    def __init__(self, graph: tf.Graph) -> None:
        self._graph = graph
        self._kept: dict[str, np.ndarray] = {}
        self._ops: dict[tuple[str, ...], list[Any]] = {}
        self._arrays: dict[str, np.ndarray] = {}

    @property
    def kept_bytes(self) -> int:
        """Memory kept for the next copies [B]."""
        return sum(array.nbytes for array in self._kept.values())

    def prepare(self, specs: Iterable[WeightSpec]) -> None:
        """Allocate memory for the first copies. May run in another thread during steps."""
        arrays = {spec.name: np.empty(spec.shape, dtype_from_name(spec.dtype)) for spec in specs}
        for array in arrays.values():
            array.fill(0)  # the system allocates a page at its first write
        self._kept = arrays

    def take(self, session: Any, values: Mapping[str, tf.Tensor]) -> dict[str, np.ndarray]:
        """Return copies of the values of tensors. They do not change until `recycle`.

        Args:
            session: The TensorFlow session.
            values: Name -> tensor.
        """
        names = tuple(values)
        if names not in self._ops:
            self._ops[names] = self._copying_ops(values)
        self._arrays, self._kept = self._kept, {}
        try:
            session.run(self._ops[names])
            return {name: self._arrays[name] for name in names}
        finally:
            self._arrays = {}

    def recycle(self, copies: Mapping[str, np.ndarray]) -> None:
        """Keep the memory of finished copies for the next ones, unless memory is scarce."""
        if sum(array.nbytes for array in copies.values()) <= _KEPT_SHARE * free_memory_bytes():
            self._kept = dict(copies)

    def drop(self) -> None:
        """Free the kept memory."""
        self._kept = {}

    def _copying_ops(self, values: Mapping[str, tf.Tensor]) -> list[Any]:
        """Return ops that each copy about the same number of elements. TensorFlow passes the values without a copy."""
        shares: list[list[str]] = [[] for _ in range(_COPYING_OPS)]
        sizes = [0] * _COPYING_OPS
        for name, value in sorted(values.items(), key=lambda item: _num_elements(item[1]), reverse=True):
            lightest = sizes.index(min(sizes))
            shares[lightest].append(name)
            sizes[lightest] += _num_elements(value)
        with self._graph.as_default(), tf.device("/cpu:0"), tf.name_scope("cs_copy"):
            return [
                tf.numpy_function(functools.partial(self._copy, names), [values[name] for name in names], tf.int32)
                for names in shares
                if names
            ]

    def _copy(self, names: Sequence[str], *values: np.ndarray) -> np.int32:
        for name, value in zip(names, values, strict=True):
            array = self._arrays.get(name)
            if array is None or (array.shape, array.dtype) != (value.shape, value.dtype):
                array = self._arrays[name] = np.empty(value.shape, value.dtype)
            np.copyto(array, value)
        return np.int32(0)


def _num_elements(value: tf.Tensor) -> int:
    return int(value.shape.num_elements() or 1)


@dataclass(frozen=True)
class Elsewhere:
    """Resident variables whose copies other CSX have.

    Attributes:
        values: Name -> the copy.
        close: Called once, when none of them is needed any more.
    """

    values: Mapping[str, OwnedElsewhere] = field(default_factory=dict)
    close: Callable[[], object] = lambda: None


class SessionSnapshot:
    """Copies of the resident variables, and the store's snapshot of the streamed ones.

    Args:
        resident: The resident variables, in order.
        copies: Name -> a copy of the value, unless it is elsewhere.
        elsewhere: The other copies.
        streamed: The streamed variables, by their index in the store.
        store: The store's snapshot; None if nothing is streamed.
        recycle: Called with the copies when they are no longer needed.
    """

    def __init__(
        self,
        resident: Iterable[WeightSpec],
        copies: Mapping[str, np.ndarray],
        elsewhere: Elsewhere,
        streamed: Mapping[int, WeightSpec],
        store: StoreSnapshot | None,
        recycle: Callable[[Mapping[str, np.ndarray]], object],
    ) -> None:
        self._resident = tuple(resident)
        self._copies: Mapping[str, np.ndarray] | None = dict(copies)
        self._elsewhere = elsewhere
        self._streamed = dict(streamed)
        self._store = store
        self._recycle = recycle

    def take(self) -> Iterator[tuple[str, np.dtype, tuple[int, ...], np.ndarray | Iterator[np.ndarray]]]:
        """Yield (name, dtype, shape, value) of each variable. No value may be used after `close`.

        A value is an array, or an iterator over the pieces of its bytes, in order. A piece is valid until the next one.
        An OwnedElsewhere can be used later, until `close`.
        Each streamed weight is read from the store once.

        Raises:
            StoreError: If the store cannot be read.
        """
        for spec in self._resident:
            other = self._elsewhere.values.get(spec.name)
            if other is not None:
                yield spec.name, dtype_from_name(spec.dtype), spec.shape, other
            else:
                value = (self._copies or {})[spec.name]
                yield spec.name, value.dtype, value.shape, value
        if self._store is not None:
            for index, spec in self._streamed.items():
                pieces = self._store.pieces(index)
                yield spec.name, dtype_from_name(spec.dtype), spec.shape, pieces
                if not isinstance(pieces, OwnedElsewhere):  # the owner may write it later
                    self._store.release(index)

    def close(self) -> None:
        """Recycle the copies and close the store's snapshot."""
        copies, self._copies = self._copies, None
        if copies is None:
            return
        if copies:
            self._recycle(copies)
        try:
            self._elsewhere.close()
        finally:
            if self._store is not None:
                self._store.close()
