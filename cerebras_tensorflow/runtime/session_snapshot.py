"""A session's variables as they are after one step, for a checkpoint that is written while training goes on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from cerebras_tensorflow.graph.program import WeightSpec, dtype_from_name
from cerebras_tensorflow.runtime.store_snapshot import StoreSnapshot


class SessionSnapshot:
    """Copies of the resident variables, and the store's snapshot of the streamed ones.

    Args:
        resident: Name -> a copy of the value.
        streamed: The streamed variables, by their index in the store.
        store: The store's snapshot; None if nothing is streamed.
    """

    def __init__(
        self, resident: Mapping[str, np.ndarray], streamed: Mapping[int, WeightSpec], store: StoreSnapshot | None
    ) -> None:
        self._resident = dict(resident)
        self._streamed = dict(streamed)
        self._store = store

    def take(self) -> Iterator[tuple[str, np.dtype, tuple[int, ...], np.ndarray | Iterator[np.ndarray]]]:
        """Yield (name, dtype, shape, value) of each variable, once; what was yielded before is given up.

        A value is an array, or the pieces of its bytes in order, each valid until the next.

        Raises:
            StoreError: If the store cannot be read.
        """
        while self._resident:
            name, value = self._resident.popitem()
            yield name, value.dtype, value.shape, value
        if self._store is not None:
            for index, spec in self._streamed.items():
                yield spec.name, dtype_from_name(spec.dtype), spec.shape, self._store.pieces(index)
                self._store.release(index)

    def close(self) -> None:
        """Give up what was not taken."""
        self._resident.clear()
        store, self._store = self._store, None
        if store is not None:
            store.close()
