"""The input of a run: what input_fn returns, as the batch of the step.

input_fn runs in the graph of the model. A Dataset that shares nothing with the model gets this graph for itself: it is
read ahead, and placeholders of the model's own graph take its batches. So one compiled Program works for any
such Dataset with the same shapes, and we can measure whether a run waits for data or for the step. All other inputs
(tensors, iterators, queues, a Dataset that reads the global step) stay part of the model, as in tf.estimator.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.config import env
from cerebras_tensorflow.errors import SettingsError
from cerebras_tensorflow.estimator.config.run_settings import RunSettings
from cerebras_tensorflow.estimator.config.streaming_batch import sharing
from cerebras_tensorflow.estimator.model.dataset_reader import AHEAD, DatasetReader, untuned
from cerebras_tensorflow.estimator.model.graph_settings import graph_semantics, new_graph
from cerebras_tensorflow.estimator.user_functions import call_input_fn
from cerebras_tensorflow.graph.cost import tensor_bytes
from cerebras_tensorflow.graph.micro_batches import BATCH
from cerebras_tensorflow.runtime.input_workers.chief import WorkersOfCsx
from cerebras_tensorflow.runtime.micro_batches.parts import parts_of_batch

PLACEHOLDER_PREFIX = BATCH


@dataclass(frozen=True)
class BatchInputs:
    """The batch inside the model's graph.

    Attributes:
        features, labels: Arguments of model_fn.
        names: Names of the placeholder ops to feed, in the order of the input's values. Empty if the step reads the
            batch itself.
        micro_batches: Number of micro-batches in a step. The placeholders take one of them.
        num_csx: CSX that share them.
        parts: Number of micro-batches in a batch of the input.
    """

    features: Any
    labels: Any
    names: tuple[str, ...]
    micro_batches: int = 1
    num_csx: int = 1
    parts: int = 1

    @property
    def tensors(self) -> list[Any]:
        """All tensors of the batch."""
        return [value for value in _leaves((self.features, self.labels)) if isinstance(value, tf.Tensor)]

    @property
    def bytes_in_memory(self) -> int:
        """Memory of the batches that exist at a time: those of the step, those read ahead, and the next one [B].

        An unknown dim counts as 1. 0 if the step reads the batch itself.
        """
        if not self.names:
            return 0
        in_step, made = self.micro_batches, self.parts * (AHEAD + 1)
        return (in_step + made) * sum(map(tensor_bytes, self.tensors))


class InputPipeline:
    """The result of one input_fn.

    Args:
        input_fn: Returns a Dataset, (features, labels) or features; may take params, mode, config, input_context.
        params, mode: Passed to input_fn if it takes them.
        settings: Settings of the run, with the config for input_fn and the seed of the graph.
        should_stop: Called while waiting for a batch; True ends the input.

    Attributes:
        graph: The graph in which model_fn must be called, with the batch in it; None: any graph.
    """

    def __init__(
        self,
        input_fn: Callable[..., Any],
        params: Any,
        mode: str,
        settings: RunSettings,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._num_csx = 1
        self._batches_per_step = 1
        self._micro_batches = 1  # of a batch
        self._parts: list[Mapping[str, np.ndarray]] = []  # micro-batches of the current batch that are left
        self._ahead: list[list[dict[str, np.ndarray]]] = []  # batches that were read ahead, in micro-batches
        self._num_taken = 0  # batches that `next_micro_batch` has begun
        graph = new_graph(settings)
        known = _Known(graph)
        given = {} if params is None else {"params": copy.deepcopy(params)}
        offered = {**given, "mode": mode, "config": settings.config, "input_context": None}
        as_worker = env.as_input_worker() if settings.is_cs_config else nullcontext()
        self._initializer: Any = None
        self._reader: DatasetReader | None = None
        workers = _workers(settings)
        shared = sharing(workers.num_csx, workers.per_csx or 1)
        with graph.as_default(), graph_semantics(), as_worker, shared:
            with tf.device("/cpu:0"):
                result = call_input_fn(input_fn, offered)
            if isinstance(result, (tf.data.Dataset, tf.compat.v1.data.Dataset)):
                if known.is_apart(graph):
                    self._reader = DatasetReader(result, should_stop, workers)
                    result = self._reader.element
                else:
                    iterator = tf.compat.v1.data.make_initializable_iterator(untuned(result))
                    self._initializer, result = iterator.initializer, iterator.get_next()
        self.graph = graph if self._reader is None else None
        self._features, self._labels = features_and_labels(result)

    def share(self, num_csx: int, is_global: bool) -> None:
        """Let CSX share the batches. Call it before `cut_batches`.

        Args:
            num_csx: Number of CSX.
            is_global: Whether each batch is split over all CSX. If not, a step takes a batch for each.
        """
        self._num_csx = num_csx
        self._batches_per_step = 1 if is_global else num_csx

    def cut_batches(self, micro_batch_size: int | None) -> None:
        """Let the placeholders take micro-batches of this size; None: whole batches.

        A batch that several CSX split has at least one micro-batch for each; None is then the largest such size.

        Raises:
            SettingsError: If the batches cannot be cut into parts of this size, or give too few micro-batches.
        """
        if micro_batch_size is None and self._num_csx > self._batches_per_step:
            micro_batch_size = max(self.sizes_of_parts, default=1)
        if micro_batch_size is not None and not self.is_fed:
            raise SettingsError(
                f"micro_batch_size is {micro_batch_size}, but input_fn returns tensors of the model's graph. Return "
                "the Dataset itself, or set micro_batch_size to none."
            )
        self._micro_batches = 1 if micro_batch_size is None else self.batch_size // micro_batch_size
        if micro_batch_size is not None and self.batch_size % micro_batch_size:
            raise SettingsError(
                f"micro_batch_size is {micro_batch_size}, and the batch has {self.batch_size} samples. Choose one of "
                f"{', '.join(map(str, divisors(self.batch_size)))}."
            )
        if self._micro_batches * self._batches_per_step < self._num_csx:
            raise SettingsError(
                f"num_csx is {self._num_csx}, and the global batch of {self.batch_size} samples has only "
                f"{self._micro_batches} micro-batches of {micro_batch_size}: each CSX needs one. Choose a smaller "
                "micro_batch_size, a larger batch or fewer CSX."
            )

    @property
    def batch_size(self) -> int:
        """Number of samples in each batch.

        Raises:
            SettingsError: If it is not fixed, so that batches cannot be cut into micro-batches.
        """
        sizes = {}
        for tensor in BatchInputs(self._features, self._labels, ()).tensors:
            if tensor.shape.rank != 0:
                sizes[tensor.shape.as_list()[0] if tensor.shape.rank else None] = tensor
        if len(sizes) == 1 and None not in sizes:
            return next(iter(sizes))
        shown = ", ".join(f"{tensor.name} {tensor.shape}" for tensor in sizes.values())
        raise SettingsError(
            "micro_batch_size: the values of input_fn need the same, fixed first dim, the samples of a batch; they "
            f"have {shown or 'none'}. Use dataset.batch(..., drop_remainder=True), or set micro_batch_size to none."
        )

    @property
    def sizes_of_parts(self) -> list[int]:
        """The sizes of micro-batches of which each CSX gets at least one, ascending."""
        least = -(-self._num_csx // self._batches_per_step)
        return [size for size in divisors(self.batch_size) if self.batch_size // size >= least]

    @property
    def is_fed(self) -> bool:
        """Whether `next_batch` gives the batches, instead of the step itself."""
        return self._reader is not None

    @property
    def batches_per_step(self) -> int:
        """Number of batches that a training step takes."""
        return self._batches_per_step

    @property
    def waited_s(self) -> float:
        """Time that steps have waited for their batch [s]; 0 if they read it themselves."""
        return self._reader.waited_s if self._reader is not None else 0.0

    def batch(self) -> BatchInputs:
        """Return the batch of `graph`, or new placeholders for it in the current graph."""
        if self._reader is None:
            return BatchInputs(self._features, self._labels, ())
        structure = (self._features,) if self._labels is None else (self._features, self._labels)
        made = [
            tf.compat.v1.placeholder(
                tensor.dtype, shape_of_part(tensor.shape, self._micro_batches), name=f"{PLACEHOLDER_PREFIX}{number}"
            )
            for number, tensor in enumerate(tf.nest.flatten(structure, expand_composites=True))
        ]
        features, *labels = tf.nest.pack_sequence_as(structure, made, expand_composites=True)
        names = tuple(tensor.op.name for tensor in made)
        in_step = self._micro_batches * self._batches_per_step
        given = labels[0] if labels else None
        return BatchInputs(features, given, names, in_step, self._num_csx, self._micro_batches)

    def start(self) -> None:
        """Start to read ahead, if `next_batch` gives the batches."""
        if self._reader is not None:
            self._reader.start()

    def initialize(self, session: Any) -> None:
        """Initialize the iterator of a Dataset that is part of the model's graph."""
        if self._initializer is not None:
            session.run(self._initializer)

    def next_batch(self) -> Mapping[str, np.ndarray]:
        """Return the next batch: name of the placeholder's tensor -> value. Errors are those of DatasetReader."""
        assert self._reader is not None, "the step reads the batch itself"
        values = self._reader.next_batch()
        return {f"{PLACEHOLDER_PREFIX}{number}:0": value for number, value in enumerate(values)}

    def next_micro_batch(self) -> Mapping[str, np.ndarray]:
        """Return the next micro-batch, with the same keys and errors as `next_batch`."""
        if not self._parts:
            self._parts = [*(self._ahead.pop(0) if self._ahead else self._next_parts())]
            self._num_taken += 1
        return self._parts.pop(0)

    def micro_batches_ahead(self, count: int, num_batches: int | None = None) -> list[Mapping[str, np.ndarray]]:
        """Return up to `count` of the next micro-batches, which stay in the input.

        An error of the input does not count here: `next_micro_batch` raises it in its place.

        Args:
            count: Number of micro-batches.
            num_batches: Number of batches that the run takes; None: all.
        """
        known = [*self._parts, *(part for parts in self._ahead for part in parts)]
        with suppress(Exception):  # the reader gives the error again
            while len(known) < count and (num_batches is None or self._num_taken + len(self._ahead) < num_batches):
                self._ahead.append(self._next_parts())
                known += self._ahead[-1]
        return known[:count]

    def _next_parts(self) -> list[dict[str, np.ndarray]]:
        return parts_of_batch(self.next_batch(), self._micro_batches)

    @property
    def is_between_batches(self) -> bool:
        """Whether all micro-batches of the last batch were taken."""
        return not self._parts

    def close(self) -> None:
        """Stop reading and release the input."""
        if self._reader is not None:
            self._reader.close()


def _workers(settings: RunSettings) -> WorkersOfCsx:
    """Return how many input workers each CSX has; 0 means as many as there are, as in the original."""
    num_csx = env.read().num_csx or settings.cs.num_csx or 1
    return WorkersOfCsx(num_csx, settings.cs.num_workers_per_csx or None)


class _Known:
    """What a graph had before the call of input_fn."""

    def __init__(self, graph: tf.Graph) -> None:
        self._num_ops = len(graph.get_operations())
        self._collections = _collections(graph)
        step = tf.compat.v1.train.get_global_step(graph)
        self._step = {step.handle.op.name} if step is not None else set()

    def is_apart(self, graph: tf.Graph) -> bool:
        """Whether input_fn has only made ops that the model cannot reach: no variable, no summary, no queue.

        Tables may be there: those of a Dataset's maps are used in its own functions.
        """
        made = graph.get_operations()[self._num_ops :]
        reads_step = any(tensor.op.name in self._step for one in made for tensor in one.inputs)
        return not reads_step and self._collections == _collections(graph)


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, ascending.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    return [size for size in range(1, number + 1) if number % size == 0]


def shape_of_part(shape: Any, micro_batches: int) -> Any:
    """Return the shape of a micro-batch of a tensor; a value without dims is in each micro-batch."""
    if micro_batches == 1 or shape.rank == 0:
        return shape
    return tf.TensorShape([shape.as_list()[0] // micro_batches, *shape.as_list()[1:]])


def _collections(graph: tf.Graph) -> dict[str, int]:
    """Return the sizes of a graph's collections that are not empty, except that of tables."""
    keys = set(graph.get_all_collection_keys()) - {tf.compat.v1.GraphKeys.TABLE_INITIALIZERS}
    sizes = {str(key): len(graph.get_collection(key)) for key in keys}
    return {key: size for key, size in sizes.items() if size}


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the parts of a structure. Unlike tf.nest, this does not sort keys, so they may have different types."""
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    else:
        yield from tf.nest.flatten(value, expand_composites=True)


def first_dim(batch: Mapping[str, np.ndarray]) -> int:
    """Return the number of samples of a batch: dim 0 of its first value that has one."""
    for value in batch.values():
        if np.ndim(value) > 0:
            return int(np.shape(value)[0])
    return 1


def features_and_labels(result: Any) -> tuple[Any, Any]:
    """Return features and labels from what input_fn or its iterator returned; labels may be None.

    Raises:
        ValueError: If it is a tuple or list of another length than 2.
    """
    if isinstance(result, (list, tuple)):
        if len(result) != 2:
            raise ValueError(
                f"input_fn should return (features, labels) as a len 2 tuple, a Dataset of such, or features alone. "
                f"It returned a {type(result).__name__} of length {len(result)}."
            )
        return result[0], result[1]
    return result, None
