"""The chief's side of input workers: the same batches in the same order, computed by other processes.

W workers share the last maps and the batching of a dataset. Part i has batches i, i + W, i + 2 W, ...; one worker
computes it, and the chief takes one batch from each worker in turn. So one worker computes each batch, and no bit of a
batch depends on the number of workers. parts.py cuts the dataset; remote.py receives the batches.

If a batch takes longer to hand over than to compute, the chief computes the rest itself (speed.py): the batches are
the same.

Some datasets cannot be shared this way: those that call Python, and those that shuffle without a seed. They stay in the
chief, and the log says why.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from cerebras_tensorflow import tf_private
from cerebras_tensorflow.config import env
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.runtime.input_workers import order, rate
from cerebras_tensorflow.runtime.input_workers.protocol import PartRequest
from cerebras_tensorflow.runtime.input_workers.speed import Comparison

REQUEST_FILE = "input-request"

SHUFFLING = {
    "ShuffleDataset",
    "ShuffleDatasetV2",
    "ShuffleDatasetV3",
    "ShuffleAndRepeatDataset",
    "ShuffleAndRepeatDatasetV2",
    "RandomDataset",
    "RandomDatasetV2",
}
PYTHON_OPS = {"PyFunc", "PyFuncStateless", "EagerPyFunc", "GeneratorDataset"}


@dataclass(frozen=True)
class WorkersOfCsx:
    """The input workers of each CSX.

    Batch number b of the input goes to CSX b mod num_csx. Worker i serves CSX i div P, where P is the number of workers
    of each CSX, and the workers of a CSX compute its batches in turn. If there are fewer workers than CSX, each worker
    serves several.

    Attributes:
        num_csx: Number of CSX that take batches in turn.
        per_csx: Workers of each; None: as many as the launch has.
    """

    num_csx: int = 1
    per_csx: int | None = None

    def count(self, available: int) -> int:
        """Return how many workers of a launch to use.

        >>> WorkersOfCsx(2).count(5), WorkersOfCsx(2, per_csx=1).count(5), WorkersOfCsx(4).count(3)
        (4, 2, 3)
        """
        most = available if self.per_csx is None else min(available, self.per_csx * self.num_csx)
        return most - most % self.num_csx if most >= self.num_csx else most

    def in_turn(self, count: int) -> list[int]:
        """Return the number of the worker that computes each of `count` consecutive batches.

        >>> WorkersOfCsx(2).in_turn(4), WorkersOfCsx(4).in_turn(3)
        ([0, 2, 1, 3], [0, 1, 2])
        """
        if count % self.num_csx:
            return list(range(count))
        per_csx = count // self.num_csx
        return [batch % self.num_csx * per_csx + batch // self.num_csx for batch in range(count)]

    def note(self, available: int) -> None:
        """Log that a launch has fewer workers than the run asks for."""
        asked = (self.per_csx or 0) * self.num_csx
        if asked > available:
            run_log.info(
                "num_workers_per_csx=%d asks for %d input worker(s), and this launch has %d. Start it with "
                "csrun_wse --input-workers %d.",
                self.per_csx, asked, available, asked,
            )  # fmt: skip


def distributed(
    dataset: Any,
    environment: env.Environment | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    workers: WorkersOfCsx = WorkersOfCsx(),
) -> Any:
    """Return a dataset of the same batches, computed by this launch's input workers if it has any.

    Call it in the graph of the input pipeline.

    Args:
        dataset: The dataset that input_fn returned.
        environment: Environment variables. By default, those of this process.
        should_stop: Called repeatedly during the wait for a batch. If it returns True, the data ends.
        workers: How many workers to use.
    """
    environment = env.read() if environment is None else environment
    if environment.input_report is not None:
        rate.write_report(dataset, environment.input_report, environment.input_cpus)
    available, folder = environment.input_workers, environment.input_folder
    if environment.role == "chief":
        workers.note(available)
    if available == 0 or folder is None or environment.role != "chief":
        return dataset
    count = workers.count(available)
    reason = why_not(tf.data.experimental.to_variant(dataset))
    if reason:
        run_log.warning("The input stays in the chief, and %d input worker(s) stay idle: %s.", count, reason)
        return dataset
    run_log.info("Input is computed by %d input worker(s).", count)
    if workers.num_csx > 1 and count >= workers.num_csx:
        run_log.info("Each of %d CSX has %d input worker(s) of its own.", workers.num_csx, count // workers.num_csx)
    # They import TensorFlow while the chief builds and compiles the model.
    start_workers(folder)
    return remote(dataset, folder, workers.in_turn(count), should_stop)


def start_workers(folder: Path) -> None:
    """Ask the wrappers of the idle input workers to start them."""
    (folder / REQUEST_FILE).touch()


def why_not(variant: Any) -> str:
    """Return why workers cannot compute the same batches of a dataset. Empty if they can."""
    graph_def = variant.graph.as_graph_def()
    nodes = [*graph_def.node, *(node for function in graph_def.library.function for node in function.node_def)]
    if any(node.op in PYTHON_OPS for node in nodes):
        return "it calls Python (py_function, numpy_function, from_generator), which cannot leave the process"
    for operation in order.upstream(variant.op):
        if operation.type == "OptionsDataset":
            options = tf_private.dataset_options(operation.get_attr("serialized_options"))
            if options.HasField("deterministic") and not options.deterministic:
                return "its options ask for no fixed order (deterministic = False)"
        if operation.type in SHUFFLING and _has_no_seed(operation):
            return "it shuffles without a seed, so each worker would have another order; set tf_random_seed"
    return ""


def remote(dataset: Any, folder: Path, workers: Sequence[int], should_stop: Callable[[], bool]) -> Any:
    """Return a dataset whose batches workers compute, one from each in turn.

    Args:
        dataset: The whole dataset, in the current graph.
        folder: The folder of the launch.
        workers: The numbers of the workers, in the order of their turns.
        should_stop: As in `distributed`.
    """
    spec = dataset.element_spec
    is_dense = all(type(one) is tf.TensorSpec for one in tf.nest.flatten(spec))
    flat = dataset.map(lambda *element: tuple(tf.nest.flatten(_one(element), expand_composites=True)))
    parts = list(zip(part_requests(flat, len(workers)), workers, strict=True))
    is_ahead = order.computes_ahead(tf.data.experimental.to_variant(dataset).op)
    # Each iterator has a number, with which it finds where the workers' batches end.
    numbers, ends = itertools.count(), dict[int, int]()

    def packed(*tensors: tf.Tensor) -> Any:
        return tf.nest.pack_sequence_as(spec, tensors, expand_composites=True)

    whole = dataset if is_dense else flat.map(packed)  # one map less where the types are the same without it

    def batches(number: tf.Tensor) -> Any:
        generator = functools.partial(_in_turn, folder, parts, should_stop, ends, is_ahead)
        remote = tf.data.Dataset.from_generator(generator, args=(number,), output_signature=flat.element_spec)
        return remote.map(packed).concatenate(tf.data.Dataset.from_tensors(number).flat_map(rest))

    def rest(number: tf.Tensor) -> Any:
        # A negative number of batches to skip means all.
        (count,) = tf.numpy_function(lambda key: [np.int64(ends.pop(int(key), -1))], [number], [tf.int64])
        return whole.skip(tf.ensure_shape(count, ()))

    def new_number() -> Any:
        return np.int64(next(numbers))

    start = tf.data.Dataset.from_tensors(0)
    numbered = start.map(lambda _: tf.ensure_shape(tf.numpy_function(new_number, [], tf.int64), ()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about options that only the graph knows
        options = dataset.options()
    # flat_map hides those of the dataset in it, such as the number of threads.
    return numbered.flat_map(batches).with_options(options)


def part_requests(flat: Any, count: int) -> list[PartRequest]:
    """Return a request for each part, for a dataset of tuples of dense tensors in the current graph."""
    variant = order.maps_last(tf.data.experimental.to_variant(flat))
    graph = variant.graph
    keys = tf.compat.v1.GraphKeys
    variables = [*graph.get_collection(keys.GLOBAL_VARIABLES), *graph.get_collection(keys.LOCAL_VARIABLES)]
    initializers = [variable.initializer for variable in variables]
    initializers += graph.get_collection(keys.TABLE_INITIALIZERS)
    specs = flat.element_spec
    return [
        PartRequest(
            variant=variant.name,
            index=index,
            count=count,
            first_batch=0,
            element_types=tuple(spec.dtype.name for spec in specs),
            element_shapes=tuple(None if s.shape.rank is None else tuple(s.shape.as_list()) for s in specs),
            initializers=tuple(operation.name for operation in initializers),
            graph_def=graph.as_graph_def().SerializeToString(),
        )
        for index in range(count)
    ]


def _one(element: tuple[Any, ...]) -> Any:
    """Return the element that a map function got. tf.data passes a tuple as several arguments."""
    return element[0] if len(element) == 1 else element


def _has_no_seed(operation: Any) -> bool:
    seeds = [tf.get_static_value(value) for value in operation.inputs if "seed" in value.op.name]
    return bool(seeds) and all(seed is not None and int(seed) == 0 for seed in seeds)


def _in_turn(
    folder: Path,
    requests: list[tuple[PartRequest, int]],
    should_stop: Callable[[], bool],
    ends: dict[int, int],
    is_ahead: bool,
    number: Any,
) -> Iterator[tuple[Any, ...]]:
    """Yield a batch of each worker in turn until one has no more. `requests` names the worker of each part.

    If computing the batches here is faster, end early, and write the number of batches to `ends[number]`. Only iterator
    0 may do so: a dataset that several iterators share can shuffle differently for each, but not in the workers.
    """
    from cerebras_tensorflow.runtime.input_workers.remote import Batch, RemotePart  # imports gRPC

    comparison = Comparison(is_ahead)
    parts = [RemotePart(folder, request, worker) for request, worker in requests]
    try:
        while True:
            for part in parts:
                comparison.asked()
                batch: Batch | None = part.next_batch(should_stop)
                if batch is None:
                    return
                verdict = comparison.got(part.work)
                yield tuple(batch)
                if verdict is not None and number == 0:
                    ends[int(number)] = verdict.batches
                    run_log.info(
                        "The chief computes its input itself from batch %d on. It takes %.1f ms of CPU time a batch; "
                        "%d input worker(s) hand one over every %.1f ms.",
                        *(verdict.batches, 1e3 * verdict.compute_s, len(parts), 1e3 * verdict.handed_over_s),
                    )
                    return
    finally:
        for part in parts:
            part.close()
