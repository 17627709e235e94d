"""Runs the first part of a training step once for each micro-batch, and returns the feeds of the update.

Each gradient leaves the graph by a call (PyFunc) as soon as it is computed. The run fetches other values.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.errors import CompileError
from cerebras_tensorflow.graph.micro_batches import (
    BATCH,
    GRADIENT_TOKEN,
    Carried,
    Gradient,
    MicroBatches,
)
from cerebras_tensorflow.graph.nodes import GraphDef
from cerebras_tensorflow.runtime.micro_batches.parts import parts_of_batch
from cerebras_tensorflow.runtime.micro_batches.sums import MemorySum, RowsSum, StoreSum, Sum
from cerebras_tensorflow.runtime.micro_batches.tree import absorbed, single
from cerebras_tensorflow.runtime.weight_store.buffers import Buffers
from cerebras_tensorflow.runtime.weight_store.interface import WeightStore

Feeds = Mapping[str, np.ndarray]
_MAX_IDLE_BYTES = 1 << 40  # keep the memory of one step's sums for the next step


class GradientSums:
    """Takes the gradients of each micro-batch from the graph, and adds them up.

    Args:
        plan: The gradients and the number of micro-batches.
        store: The weight store, which may hold totals.
    """

    def __init__(self, plan: MicroBatches, store: WeightStore | None) -> None:
        self._gradients = plan.gradients
        self._count = plan.count
        self._absorbed = absorbed(single(0, plan.count))
        self._buffers = Buffers(_MAX_IDLE_BYTES)
        self._sums = [self._sum_of(gradient, store) for gradient in plan.gradients]
        self._taken = [0] * len(plan.gradients)  # number of micro-batches added in this step, by gradient
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._graph = tf.Graph()  # keeps the PyFunc's Python function alive
        with self._graph.as_default():
            call = tf.numpy_function(self._take, [tf.constant(0, tf.int64), tf.constant(0.0)], tf.int32)
        self._token = call.op.get_attr("token")

    def bind(self, graph_def: GraphDef) -> GraphDef:
        """Return a copy of the graph whose sinks call this object."""
        bound = GraphDef.FromString(graph_def.SerializeToString())
        for node in bound.node:
            if node.op == "PyFunc" and node.attr["token"].s == GRADIENT_TOKEN.encode():
                node.attr["token"].s = self._token
        return bound

    def start(self) -> None:
        """Start a step."""
        self._taken = [0] * len(self._gradients)
        for total in self._sums:
            total.take_total()

    def totals(self) -> dict[str, np.ndarray]:
        """Return the totals in host memory: name of the update's tensor -> value.

        Raises:
            CompileError: If a gradient did not come from every micro-batch.
        """
        feeds: dict[str, np.ndarray] = {}
        for gradient, total, taken in zip(self._gradients, self._sums, self._taken, strict=True):
            if taken != self._count:
                raise CompileError(
                    f"micro-batches: the gradient of {gradient.mark.variable} was computed in {taken} of {self._count} "
                    "micro-batches, since it is in a branch of tf.cond. Compute it outside of the branch, or set "
                    "micro_batch_size to none."
                )
            feeds.update(zip((f"{name}:0" for name in gradient.totals), total.take_total(), strict=True))
        return feeds

    def take_error(self) -> BaseException | None:
        """Return the first error since the last `take_error`, as raised; TensorFlow would wrap it."""
        with self._lock:
            error, self._error = self._error, None
        return error

    def close(self) -> None:
        """Free the memory of sums."""
        self.start()
        self._buffers.close()

    def _sum_of(self, gradient: Gradient, store: WeightStore | None) -> Sum:
        if gradient.stored is not None:
            assert store is not None, "a Program with totals in the store has a store"
            return StoreSum(store, gradient.stored, gradient.partials)
        return MemorySum(self._buffers) if gradient.mark.rows is None else RowsSum()

    def _take(self, index: np.int64, *value: np.ndarray) -> np.int32:
        """Add the gradient of the current micro-batch."""
        number = self._taken[index]
        try:
            divisor = self._count if number == self._count - 1 else None
            self._sums[index].add(value, self._absorbed[number], divisor)
        except BaseException as error:
            with self._lock:
                self._error = self._error or error
            raise
        self._taken[index] += 1
        return np.int32(0)


class MicroBatchRuns:
    """Runs the micro-batches of a training step.

    Args:
        plan: The plan of the Program.
        sums: Takes the gradients.
        run: Runs tensors of the Program's graph with feeds.
        added: Values that the ops of hooks take from the micro-batches, besides those of the plan. The list may grow.
        placeholders: Returns the placeholders that ops of the Program's graph depend on, by name.
    """

    def __init__(
        self,
        plan: MicroBatches,
        sums: GradientSums,
        run: Callable[[Sequence[Any], Mapping[Any, Any]], Sequence[np.ndarray]],
        added: Sequence[Carried],
        placeholders: Callable[[frozenset[str]], frozenset[str]],
    ) -> None:
        self._plan = plan
        self._sums = sums
        self._run = run
        self._added = added
        self._placeholders = placeholders
        self._buffers = Buffers()

    def feeds_of_update(
        self, fetched: Sequence[Any], batch: Feeds, feeds: Mapping[Any, Any], counters: Callable[[int], Feeds]
    ) -> dict[Any, np.ndarray]:
        """Run all micro-batches; return the totals, and those of the caller's fetches that depend on the batch.

        A floating-point scalar is the mean over the micro-batches. Any other value is that of the first one.

        Args:
            fetched: Tensors and ops that the caller fetches.
            batch: The batch of the step: name of a placeholder's tensor -> value.
            feeds: What the caller feeds.
            counters: Micro-batch -> feeds of the counters that random ops draw from.

        Raises:
            CompileError: If an op that depends on the batch is fetched; only tensors can be.
        """
        wanted = self._wanted(fetched)
        sinks = [f"{gradient.sink}:0" for gradient in self._plan.gradients]
        means = {key: MemorySum(self._buffers) for key, (_, is_mean) in wanted.items() if is_mean}
        results: dict[Any, np.ndarray] = {}
        order = absorbed(single(0, self._plan.count))
        self._sums.start()
        for number, part in enumerate(parts_of_batch(batch, self._plan.count)):
            keys = [key for key in wanted if key in means or number == 0]
            run_feeds = {**counters(number), **part, **feeds}
            values = self._run([*sinks, *(wanted[key][0] for key in keys)], run_feeds)[len(sinks) :]
            divisor = self._plan.count if number == self._plan.count - 1 else None
            for key, value in zip(keys, values, strict=True):
                if isinstance(key, tf.Tensor) and np.ndim(value):
                    means.pop(key, None)  # the shape was not known before
                if key in means:
                    means[key].add([value], order[number], divisor)
                else:
                    results[key] = value
        results.update({key: mean.take_total()[0] for key, mean in means.items()})
        return {**self._sums.totals(), **results}

    def _wanted(self, fetched: Sequence[Any]) -> dict[Any, tuple[Any, bool]]:
        """Return feed of the update -> (tensor to fetch from the micro-batches, whether to take the mean)."""
        wanted: dict[Any, tuple[Any, bool]] = {}
        names = {one: one.name if isinstance(one, tf.Operation) else one.op.name for one in fetched}
        sources = set(self._placeholders(frozenset(names.values())))
        if any(source.startswith(BATCH) for source in sources):
            sources = set()
            for one, name in names.items():
                needed = self._placeholders(frozenset([name]))
                if not any(source.startswith(BATCH) for source in needed):
                    sources |= needed
                elif isinstance(one, tf.Operation):
                    raise CompileError(
                        f"micro-batches: the op {name} runs once for each micro-batch. Fetch a tensor instead."
                    )
                else:
                    wanted[one] = (one, one.dtype.is_floating and one.shape.rank in (0, None))
        for carried in (*self._plan.carried, *self._added):
            if carried.placeholder in sources:
                wanted[f"{carried.placeholder}:0"] = (carried.tensor, carried.is_mean)
        return wanted
