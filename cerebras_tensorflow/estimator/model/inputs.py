"""The input pipeline: input_fn runs in a separate graph, and placeholders pass its batches to the step.

So the step's graph does not depend on how data is read, and one compiled Program works for any pipeline with the same
shapes. We can also measure whether a run waits for data or for the step. Hooks see no difference: the session of a run
also accepts ops and tensors of the input's graph, so a hook may initialize an iterator, feed it, or fetch the batch.
"""

from __future__ import annotations

import copy
import queue
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.config import env
from cerebras_tensorflow.estimator.config.run_settings import RunSettings
from cerebras_tensorflow.estimator.user_functions import call_with
from cerebras_tensorflow.runtime.input_workers import chief as input_workers

PLACEHOLDER_PREFIX = "cs_input/"
_AHEAD = 2  # batches read ahead of the step
_LOOK_UP_S = 0.5  # between checks of should_stop while a step waits for its batch


@dataclass(frozen=True)
class BatchInputs:
    """The batch inside the step's graph.

    Attributes:
        features, labels: Arguments of model_fn.
        names: Names of the placeholder ops, in the order of the pipeline's values.
    """

    features: Any
    labels: Any
    names: tuple[str, ...]


class InputPipeline:
    """Runs one input_fn and yields its batches as arrays.

    Args:
        input_fn: Returns a Dataset, (features, labels) or features; may take params, mode, config, input_context.
        params, mode: Passed to input_fn if it takes them.
        settings: Settings of the run, with the config for input_fn and the seed of the graph.
        should_stop: Called while waiting for a batch; True ends the input.
    """

    def __init__(
        self,
        input_fn: Callable[..., Any],
        params: Any,
        mode: str,
        settings: RunSettings,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.graph = tf.Graph()
        self._should_stop = should_stop
        self._batches: queue.Queue[Any] = queue.Queue(_AHEAD)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._session: Any = None
        self._coordinator = tf.train.Coordinator()
        self._has_queues = False
        self._step_of_run: Callable[[], int] | None = None
        self.waited_s = 0.0
        self.is_exhausted = False
        with self.graph.as_default():
            tf.compat.v1.set_random_seed(settings.tf_random_seed)
            self._global_step = tf.compat.v1.train.create_global_step(self.graph)
            num_own = len(self.graph.get_operations())
            given = {} if params is None else {"params": copy.deepcopy(params)}
            offered = {**given, "mode": mode, "config": settings.config, "input_context": None}
            with env.as_input_worker() if settings.is_cs_config else nullcontext():
                result = call_with(input_fn, offered)
            self._initializers: list[Any] = []
            self._is_dataset = isinstance(result, (tf.data.Dataset, tf.compat.v1.data.Dataset))
            if self._is_dataset:
                iterator = tf.compat.v1.data.make_initializable_iterator(
                    untuned(input_workers.distributed(result, should_stop=self._stop.is_set))
                )
                self._initializers.append(iterator.initializer)
                result = iterator.get_next()
            features, labels = _features_and_labels(result)
            self._structure = (features,) if labels is None else (features, labels)
            flat = tf.nest.flatten(self._structure, expand_composites=True)
            self._tensors = [tf.convert_to_tensor(tensor) for tensor in flat]
        made = self.graph.get_operations()[num_own:]
        self._takes_step = any(tensor.op.name == self._global_step.op.name for one in made for tensor in one.inputs)

    def placeholders(self) -> BatchInputs:
        """Make placeholders for the batch in the current graph."""
        made = [
            tf.compat.v1.placeholder(tensor.dtype, tensor.shape, name=f"{PLACEHOLDER_PREFIX}{number}")
            for number, tensor in enumerate(self._tensors)
        ]
        features, *labels = tf.nest.pack_sequence_as(self._structure, made, expand_composites=True)
        return BatchInputs(features, labels[0] if labels else None, tuple(tensor.op.name for tensor in made))

    @property
    def session(self) -> Any:
        """The TensorFlow session on the input's graph; the first use makes it and initializes variables and tables."""
        if self._session is None:
            with self.graph.as_default():
                self._session = tf.compat.v1.Session(graph=self.graph)
                self._session.run(
                    [
                        tf.compat.v1.global_variables_initializer(),
                        tf.compat.v1.local_variables_initializer(),
                        tf.compat.v1.tables_initializer(),
                    ]
                )
        return self._session

    def placeholder_of(self, tensor: Any) -> str | None:
        """Return the name of the step's placeholder for a tensor of the input; None if it is not in the batch."""
        for number, own in enumerate(self._tensors):
            if own is tensor:
                return f"{PLACEHOLDER_PREFIX}{number}:0"
        return None

    def start(self, step_of_run: Callable[[], int] | None = None) -> None:
        """Start the pipeline. A Dataset is read ahead from now on, other inputs from the first `next_batch`.

        So a hook can first initialize the iterator of an input_fn that returns tensors.

        Args:
            step_of_run: Returns the global step. An input that uses the global step is not read ahead.
        """
        self._step_of_run = step_of_run
        if self._is_dataset and not self._takes_step:
            self._read_ahead()

    def _read_ahead(self) -> None:
        self._thread = threading.Thread(target=self._read, name="input-pipeline", daemon=True)
        self._thread.start()

    def next_batch(self) -> Mapping[str, np.ndarray]:
        """Return the next batch: name of the placeholder's tensor -> value.

        Raises:
            tf.errors.OutOfRangeError: If the input has ended.
            StopIteration: If should_stop returns True before a batch arrives.
            Exception: The error of the pipeline.
        """
        if self._takes_step:
            return self._batch_of_step()
        if self._thread is None:
            self._read_ahead()
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
            self.is_exhausted = isinstance(item, tf.errors.OutOfRangeError)
            raise item
        return _named(item)

    def _batch_of_step(self) -> Mapping[str, np.ndarray]:
        """Return the next batch of an input that uses the global step."""
        begin = time.perf_counter()
        try:
            if self._initializers:
                initializers, self._initializers = self._initializers, []
                self.session.run(initializers)
            self._start_queues()
            self._global_step.load(self._step_of_run() if self._step_of_run is not None else 0, self.session)
            return _named(self.session.run(self._tensors))
        except tf.errors.OutOfRangeError:
            self.is_exhausted = True
            raise
        finally:
            self.waited_s += time.perf_counter() - begin

    def _start_queues(self) -> None:
        with self.graph.as_default():
            if self.graph.get_collection(tf.compat.v1.GraphKeys.QUEUE_RUNNERS) and not self._has_queues:
                self._has_queues = True
                tf.compat.v1.train.start_queue_runners(self.session, self._coordinator)

    def close(self) -> None:
        """Stop reading and release the pipeline."""
        self._stop.set()
        while self._thread is not None and self._thread.is_alive():
            try:
                self._batches.get_nowait()
            except queue.Empty:
                self._thread.join(0.01)
        self._coordinator.request_stop()
        if self._session is not None:
            self._session.close()

    def _read(self) -> None:
        try:
            self.session.run(self._initializers)
            self._start_queues()
            step = self.session.make_callable(self._tensors)
            while not self._stop.is_set():
                self._batches.put(step())
        except Exception as error:  # noqa: BLE001 - handed to the thread that asks for the next batch
            self._batches.put(error)
        finally:
            self._coordinator.request_stop()


def _named(values: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    return {f"{PLACEHOLDER_PREFIX}{number}:0": value for number, value in enumerate(values)}


def untuned(dataset: Any) -> Any:
    """Return the dataset with tf.data's autotuning off, unless its options set it.

    Releasing a tuned dataset may wait for the tuner's thread. This thread sleeps up to 60 s and can miss its
    cancellation, so runs with slow steps ended a minute late (TF 2.21, RootDataset::Iterator). Without tuning, AUTOTUNE
    means the number of cores.
    """
    with warnings.catch_warnings():
        # In graph mode TensorFlow warns that it only knows options that were set in Python.
        warnings.filterwarnings("ignore", message="To make it possible to preserve tf.data options")
        if dataset.options().autotune.enabled is not None:
            return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def first_dim(batch: Mapping[str, np.ndarray]) -> int:
    """Return the number of samples of a batch: dim 0 of its first value that has one."""
    for value in batch.values():
        if np.ndim(value) > 0:
            return int(np.shape(value)[0])
    return 1


def _features_and_labels(result: Any) -> tuple[Any, Any]:
    if isinstance(result, (list, tuple)) and not hasattr(result, "_fields"):
        if len(result) != 2:
            raise ValueError(
                f"input_fn should return (features, labels) as a len 2 tuple, a Dataset of such, or features alone. "
                f"It returned a {type(result).__name__} of length {len(result)}."
            )
        return result[0], result[1]
    return result, None
