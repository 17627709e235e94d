"""Reads the batches of a Dataset ahead of the step, in a session of its own."""

from __future__ import annotations

import queue
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.runtime.input_workers import chief as input_workers

OPTIONS_WARNING = "To make it possible to preserve tf.data options"
"""TensorFlow's warning, in graph mode, that it only knows options that were set in Python."""
AHEAD = 2  # batches read ahead of the step
_LOOK_UP_S = 0.5  # between checks of should_stop while a step waits for its batch


class DatasetReader:
    """Reads a Dataset in a thread.

    Args:
        dataset: A Dataset of the default graph.
        should_stop: Called while waiting for a batch; True ends the input.
        workers: How many of the launch's input workers to use.

    Attributes:
        element: The structure of tensors that the Dataset yields.
        waited_s: Time that callers of `next_batch` have waited [s].
    """

    def __init__(
        self, dataset: Any, should_stop: Callable[[], bool], workers: input_workers.WorkersOfCsx | None = None
    ) -> None:
        self._should_stop = should_stop
        self._batches: queue.Queue[Any] = queue.Queue(AHEAD)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._session: Any = None
        self._graph = tf.compat.v1.get_default_graph()
        iterator = tf.compat.v1.data.make_initializable_iterator(
            untuned(
                input_workers.distributed(
                    dataset, should_stop=self._stop.is_set, workers=workers or input_workers.WorkersOfCsx()
                )
            )
        )
        self._initializer = iterator.initializer
        self.element = iterator.get_next()
        self._tensors = tf.nest.flatten(self.element, expand_composites=True)
        self.waited_s = 0.0

    def start(self) -> None:
        """Start reading ahead."""
        self._thread = threading.Thread(target=self._read, name="input-pipeline", daemon=True)
        self._thread.start()

    def next_batch(self) -> Sequence[np.ndarray]:
        """Return the values of the next batch, in the order of the flat element.

        Raises:
            tf.errors.OutOfRangeError: If the input has ended.
            StopIteration: If should_stop returns True before a batch arrives.
            Exception: The error of the Dataset.
        """
        begin = time.perf_counter()
        item: Any = None
        while item is None:
            try:
                item = self._batches.get(timeout=_LOOK_UP_S)
            except queue.Empty:
                if self._should_stop():
                    raise StopIteration from None
        self.waited_s += time.perf_counter() - begin
        if isinstance(item, BaseException):
            self._batches.put(item)
            raise item
        values: Sequence[np.ndarray] = item
        return values

    def close(self) -> None:
        """Stop reading and release the Dataset."""
        self._stop.set()
        while self._thread is not None and self._thread.is_alive():
            try:
                self._batches.get_nowait()
            except queue.Empty:
                self._thread.join(0.01)
        if self._session is not None:
            self._session.close()

    def _read(self) -> None:
        try:
            config = tf.compat.v1.ConfigProto()
            config.graph_options.rewrite_options.disable_meta_optimizer = True  # tf.data optimizes the Dataset itself
            self._session = tf.compat.v1.Session(graph=self._graph, config=config)
            self._initialize_resources()
            self._session.run(self._initializer)
            step = self._session.make_callable(self._tensors)
            while not self._stop.is_set():
                self._batches.put(step())
        except Exception as error:  # noqa: BLE001 - handed to the thread that asks for the next batch
            self._batches.put(error)

    def _initialize_resources(self) -> None:
        keys = tf.compat.v1.GraphKeys
        if not any(
            map(self._graph.get_collection, (keys.GLOBAL_VARIABLES, keys.LOCAL_VARIABLES, keys.TABLE_INITIALIZERS))
        ):
            return
        with self._graph.as_default():
            initializers = [
                tf.compat.v1.global_variables_initializer(),
                tf.compat.v1.local_variables_initializer(),
                tf.compat.v1.tables_initializer(),
            ]
        self._session.run(initializers)


def untuned(dataset: Any) -> Any:
    """Return the dataset with tf.data's autotuning off, unless its options set it.

    Releasing a tuned dataset may wait for the tuner's thread. This thread sleeps up to 60 s and can miss its
    cancellation, so runs with slow steps ended a minute late (TF 2.21, RootDataset::Iterator). Without tuning, AUTOTUNE
    means the number of cores.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=OPTIONS_WARNING)
        if dataset.options().autotune.enabled is not None:
            return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)
