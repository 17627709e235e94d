"""Connects the PyFunc nodes of a weight-streaming graph to its weight store."""

from __future__ import annotations

import threading
from itertools import chain

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.graph.nodes import GraphDef, copied
from cerebras_tensorflow.graph.program import (
    FETCH_TOKEN,
    GATHER_TOKEN,
    LEND_TOKEN,
    LOAD_TOKEN,
    PRIVATE_LOAD_TOKEN,
    PUT_TOKEN,
    SLICE_LOAD_TOKEN,
    SLICE_STORE_TOKEN,
    STORE_TOKEN,
    TAKE_TOKEN,
    UNCHECKED_LOAD_TOKEN,
)
from cerebras_tensorflow.runtime.weight_store.interface import WeightStore


class StoreCalls:
    """Connects a Program's graph to a store.

    A PyFunc node names its Python function by a token. `tf.numpy_function` registers the function under a token, and
    ties it to the current graph. So this object keeps a graph that lives as long as the session. Arrays pass in both
    directions without a copy.
    """

    def __init__(self, store: WeightStore) -> None:
        self._store = store
        self._graph = tf.Graph()
        self._lock = threading.Lock()
        self.error: BaseException | None = None
        with self._graph.as_default():
            index = tf.constant(0, tf.int64)
            value = tf.constant(0.0)
            calls = {
                LOAD_TOKEN: tf.numpy_function(self._load, [index], tf.float32),
                UNCHECKED_LOAD_TOKEN: tf.numpy_function(self._unchecked_load, [index], tf.float32),
                PRIVATE_LOAD_TOKEN: tf.numpy_function(self._private_load, [index], tf.float32),
                GATHER_TOKEN: tf.numpy_function(self._gather, [index, index], tf.float32),
                STORE_TOKEN: tf.numpy_function(self._store_value, [index, value], tf.int32),
                SLICE_LOAD_TOKEN: tf.numpy_function(self._load_slice, [index, index, index], tf.float32),
                LEND_TOKEN: tf.numpy_function(self._lend, [index, index, index], tf.float32),
                SLICE_STORE_TOKEN: tf.numpy_function(self._store_slice, [index, index, value], tf.int32),
                FETCH_TOKEN: tf.numpy_function(self._fetch, [index], tf.int32),
                TAKE_TOKEN: tf.numpy_function(self._take, [index], tf.float32),
                PUT_TOKEN: tf.numpy_function(self._put, [index, value], tf.int32),
            }
        self._fetched: dict[bytes, list[np.ndarray]] = {}
        self._tokens = {name.encode(): call.op.get_attr("token") for name, call in calls.items()}

    def bind(self, graph_def: GraphDef) -> GraphDef:
        """Return a copy of the graph that calls this store."""
        bound = copied(graph_def)
        for node in chain(bound.node, *(function.node_def for function in bound.library.function)):
            if node.op == "PyFunc" and node.attr["token"].s in self._tokens:
                node.attr["token"].s = self._tokens[node.attr["token"].s]
        return bound

    def take_error(self) -> BaseException | None:
        """Return the first error that a call raised since the last `take_error`, not wrapped by TensorFlow."""
        self._fetched.clear()  # by a step that failed before its updates
        with self._lock:
            error, self.error = self.error, None
        return error

    def _load(self, index: np.int64) -> np.ndarray:
        with _Recorded(self):
            return self._store.read(int(index))

    def _unchecked_load(self, index: np.int64) -> np.ndarray:
        with _Recorded(self):
            return self._store.read_unchecked(int(index))

    def _private_load(self, index: np.int64) -> np.ndarray:
        with _Recorded(self):
            return self._store.read_private(int(index))

    def _gather(self, index: np.int64, rows: np.ndarray) -> np.ndarray:
        with _Recorded(self):
            return self._store.read_rows(int(index), np.asarray(rows))

    def _store_value(self, index: np.int64, value: np.ndarray) -> np.int32:
        with _Recorded(self):
            self._store.write(int(index), value)
        return np.int32(0)

    def _load_slice(self, index: np.int64, start: np.int64, stop: np.int64) -> np.ndarray:
        with _Recorded(self):
            return self._store.read_slice(int(index), int(start), int(stop))

    def _lend(self, index: np.int64, start: np.int64, stop: np.int64) -> np.ndarray:
        with _Recorded(self):
            return self._store.lend(int(index), int(start), int(stop))

    def _store_slice(self, index: np.int64, start: np.int64, value: np.ndarray) -> np.int32:
        with _Recorded(self):
            self._store.write_slice(int(index), int(start), value)
        return np.int32(0)

    def _fetch(self, numbers: np.ndarray) -> np.int32:
        *indices, start, stop = numbers.tolist()
        with _Recorded(self):
            self._fetched[numbers.tobytes()] = [self._store.read_slice(index, start, stop) for index in indices]
        return np.int32(0)

    def _take(self, numbers: np.ndarray) -> list[np.ndarray]:
        return self._fetched.pop(numbers.tobytes())

    def _put(self, numbers: np.ndarray, *values: np.ndarray) -> np.int32:
        *indices, start, _ = numbers.tolist()
        with _Recorded(self):
            for index, value in zip(indices, values, strict=True):
                self._store.write_slice(index, start, value)
        return np.int32(0)

    def record(self, error: BaseException) -> None:
        """Keep an error, unless there is one already."""
        with self._lock:
            self.error = self.error or error


class _Recorded:
    """Records an error that leaves the block."""

    def __init__(self, calls: StoreCalls) -> None:
        self._calls = calls

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self._calls.record(error)
