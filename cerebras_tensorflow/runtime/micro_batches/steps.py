"""Runs the first part of a training step once for each micro-batch, and returns the feeds of the update.

Each gradient leaves the graph by a call (PyFunc) as soon as it is computed. The run fetches other values.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.errors import CompileError
from cerebras_tensorflow.graph.micro_batches import (
    BATCH,
    EVERY,
    GRADIENT_TOKEN,
    Carried,
    Gradient,
    MicroBatches,
)
from cerebras_tensorflow.graph.nodes import GraphDef, copied
from cerebras_tensorflow.runtime.micro_batches.share import Across, Share
from cerebras_tensorflow.runtime.micro_batches.streamed import HasSums, StreamedSum
from cerebras_tensorflow.runtime.micro_batches.sums import (
    MemorySum,
    RowsSum,
    StoreSum,
    Sum,
    complete_in_memory,
)
from cerebras_tensorflow.runtime.weight_store.buffers import Buffers
from cerebras_tensorflow.runtime.weight_store.interface import WeightStore

Feeds = Mapping[str, np.ndarray]
_MAX_IDLE_BYTES = 1 << 40  # keep the memory of one step's sums for the next step


class GradientSums:
    """Takes the gradients of each micro-batch from the graph, and adds them up.

    Args:
        plan: The gradients and the number of micro-batches.
        store: The weight store, which may hold totals.
        share: The micro-batches that this CSX computes.
        buffers: Memory for sums; None: that of this process alone.
    """

    def __init__(
        self, plan: MicroBatches, store: WeightStore | None, share: Share, buffers: Buffers | None = None
    ) -> None:
        self._gradients = plan.gradients
        self._count = plan.count
        self._share = share
        self._absorbed = share.absorbed
        self._buffers = buffers or Buffers(_MAX_IDLE_BYTES)
        self._sender = store.sums if isinstance(store, HasSums) else None
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
        bound = copied(graph_def)
        for node in bound.node:
            if node.op == "PyFunc" and node.attr["token"].s == GRADIENT_TOKEN.encode():
                node.attr["token"].s = self._token
        return bound

    def start(self) -> None:
        """Start a step."""
        self._taken = [0] * len(self._gradients)
        for total in self._sums:
            total.take_total()

    def complete(self, across: Across, means: Sequence[MemorySum]) -> None:
        """Add the sums of the other CSX. At the end, all CSX have computed their micro-batches.

        Args:
            across: Gets the sums of the other CSX.
            means: More sums to complete.

        Raises:
            CompileError: If a gradient did not come from every micro-batch.
            CollectiveError: If another CSX failed.
        """
        self._check_taken()
        for one in self._sums:
            if not isinstance(one, MemorySum):
                one.complete(across, self._count)
        if self._sender is not None:
            self._sender.finish()
        in_memory = [one for one in self._sums if isinstance(one, MemorySum)]
        if in_memory or means:
            complete_in_memory([*in_memory, *means], across, self._count)
        else:  # no CSX begins its update while another one may still read weights
            across.barrier()

    def totals(self) -> dict[str, np.ndarray]:
        """Return the totals in host memory: name of the update's tensor -> value.

        Raises:
            CompileError: If a gradient did not come from every micro-batch.
        """
        self._check_taken()
        feeds: dict[str, np.ndarray] = {}
        for gradient, total in zip(self._gradients, self._sums, strict=True):
            names, values = [f"{name}:0" for name in gradient.totals], total.take_total()
            if values or gradient.owner == EVERY:  # another CSX has the total
                feeds.update(zip(names, values, strict=True))
        return feeds

    def _check_taken(self) -> None:
        for gradient, taken in zip(self._gradients, self._taken, strict=True):
            if taken != self._share.size:
                raise CompileError(
                    f"micro-batches: the gradient of {gradient.mark.variable} was computed in {taken} of "
                    f"{self._share.size} micro-batches, since it is in a branch of tf.cond. Compute it outside of the "
                    "branch, or set micro_batch_size to none and num_csx to 1."
                )

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
            if gradient.adder is not None:
                assert self._sender is not None, "the store of CSX that share the weights sends sums"
                return StreamedSum(gradient, store, self._sender, self._share)
            return StoreSum(store, gradient.stored, gradient.partials)
        return MemorySum(self._buffers) if gradient.mark.rows is None else RowsSum(gradient.owner)

    def _take(self, index: np.int64, *value: np.ndarray) -> np.int32:
        """Add the gradient of the current micro-batch."""
        number = self._taken[index]
        try:
            is_last = self._share.is_whole and number == self._count - 1
            divisor = self._count if is_last else None
            self._sums[index].add(value, self._absorbed[number], divisor)
        except BaseException as error:
            with self._lock:
                self._error = self._error or error
            raise
        self._taken[index] += 1
        return np.int32(0)


@dataclass(frozen=True)
class Wanted:
    """A value of the micro-batches that the update or the caller takes.

    Attributes:
        tensor: Name of the tensor.
        is_mean: Whether it is the mean over all micro-batches; if not, it is the value of the first one.
        is_fetched: Whether the caller fetches it. Its shape may then be unknown: only a scalar has a mean.
    """

    tensor: str
    is_mean: bool
    is_fetched: bool = False


class MicroBatchRuns:
    """Runs the micro-batches of a training step.

    Args:
        plan: The plan of the Program.
        sums: Takes the gradients.
        added: Values that the ops of hooks take from the micro-batches, besides those of the plan. The list may grow.
        placeholders: Returns the placeholders that ops of the Program's graph depend on, by name.
        share: The micro-batches that this CSX computes.
        across: Adds the sums of the other CSX; None: there are none.
    """

    def __init__(
        self,
        plan: MicroBatches,
        sums: GradientSums,
        added: Sequence[Carried],
        placeholders: Callable[[frozenset[str]], frozenset[str]],
        share: Share,
        across: Across | None = None,
    ) -> None:
        self._plan = plan
        self._sums = sums
        self._added = added
        self._placeholders = placeholders
        self._share = share
        self._across = across
        self._buffers = Buffers()

    @property
    def names_of_totals(self) -> frozenset[str]:
        """Names of the tensors of the update that take a total in host memory."""
        return frozenset(f"{name}:0" for gradient in self._plan.gradients for name in gradient.totals)

    def feeds_of_update(
        self,
        wanted: Mapping[Any, Wanted],
        parts: Sequence[Feeds],
        feeds: Mapping[Any, Any],
        counters: Callable[[int], Feeds],
        run: Callable[[Sequence[Any], Mapping[Any, Any]], Sequence[np.ndarray]],
    ) -> dict[Any, np.ndarray]:
        """Run this CSX's micro-batches; return the totals of all CSX, and the wanted values.

        A floating-point scalar is the mean over the micro-batches. Any other value is that of the first one, so only
        the first CSX returns it.

        Args:
            wanted: Values that the update or the caller takes, from `wanted`.
            parts: This CSX's micro-batches: name of a placeholder's tensor -> value.
            feeds: What the caller feeds.
            counters: Micro-batch -> feeds of the counters that random ops draw from.
            run: Runs tensors of the Program's graph with feeds.

        Raises:
            CollectiveError: If another CSX failed.
        """
        share, count = self._share, self._plan.count
        sinks = [f"{gradient.sink}:0" for gradient in self._plan.gradients]
        means = {key: MemorySum(self._buffers) for key, one in wanted.items() if one.is_mean}
        results: dict[Any, np.ndarray] = {}
        self._sums.start()
        for number, (part, taken) in enumerate(zip(parts, share.absorbed, strict=True), share.first):
            if self._across is not None:
                self._across.check()
            keys = [key for key in wanted if key in means or number == 0]
            run_feeds = {**counters(number), **part, **feeds}
            values = run([*sinks, *(wanted[key].tensor for key in keys)], run_feeds)[len(sinks) :]
            divisor = count if share.is_whole and number == count - 1 else None
            for key, value in zip(keys, values, strict=True):
                if wanted[key].is_fetched and np.ndim(value):
                    means.pop(key, None)  # the shape was not known before
                if key in means:
                    means[key].add([value], taken, divisor)
                elif number == 0:
                    results[key] = value
        if self._across is not None:
            self._sums.complete(self._across, list(means.values()))
        results.update({key: mean.take_total()[0] for key, mean in means.items()})
        return {**self._sums.totals(), **results}

    def wanted(self, fetched: Sequence[Any]) -> dict[Any, Wanted]:
        """Return feed of the update -> value of the micro-batches, for what a caller fetches in addition to the step.

        Args:
            fetched: Tensors and ops that the caller fetches.

        Raises:
            CompileError: If an op that depends on the batch is fetched; only tensors can be.
        """
        wanted: dict[Any, Wanted] = {}
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
                    is_mean = one.dtype.is_floating and one.shape.rank in (0, None)
                    wanted[one] = Wanted(one.name, is_mean, is_fetched=True)
        for carried in (*self._plan.carried, *self._added):
            if carried.placeholder in sources or (self._across is not None and carried.is_mean):  # others take it
                wanted[f"{carried.placeholder}:0"] = Wanted(carried.tensor, carried.is_mean)
        return wanted
