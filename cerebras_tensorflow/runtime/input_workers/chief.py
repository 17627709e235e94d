"""The chief's side of input workers: the same batches in the same order, computed by other processes.

The last maps and the batching of a dataset are given to W workers in turn: worker i computes batches i, i + W, i + 2 W,
... and the chief takes one from each in turn. What lies before (reading, shuffling, repeating) every worker does for
itself, with the same seeds, and skips what is not its own. So each batch is computed once, by one worker, and the
batches do not depend on the number of workers, to the last bit. Workers are tf.data service servers; see
process.py.

A dataset that cannot be treated so (Python functions inside, no seed for its shuffling) stays in the chief, and the
log says why.
"""

from __future__ import annotations

import json
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import dataset_options_pb2

from cerebras_tensorflow.config import env
from cerebras_tensorflow.errors import CerebrasError
from cerebras_tensorflow.logs import run_log
from cerebras_tensorflow.runtime.input_workers import order as input_order
from cerebras_tensorflow.runtime.input_workers import rate as input_rate
from cerebras_tensorflow.runtime.input_workers.order import BATCHING, MAP_AND_BATCH, MAPS, PASSING

REQUEST_FILE = "input-request"
START_TIMEOUT_S = 300.0
POLL_S = 0.1

ELEMENT_WISE = MAPS | PASSING
SHUFFLING = {
    "ShuffleDataset",
    "ShuffleDatasetV2",
    "ShuffleDatasetV3",
    "ShuffleAndRepeatDataset",
    "ShuffleAndRepeatDatasetV2",
    "RandomDataset",
    "RandomDatasetV2",
}
PYTHON_OPS = {"PyFunc", "PyFuncStateless", "EagerPyFunc"}


@dataclass(frozen=True)
class Split:
    """Where a dataset is cut: `source` is what every worker computes, `batch_size` elements of it make a batch."""

    source: Any
    batch_size: int


def distributed(dataset: Any, environment: env.Environment | None = None) -> Any:
    """Return a dataset of the same batches, computed by this launch's input workers if it has any.

    Called in the graph of the input pipeline, with the dataset that input_fn returned.

    Raises:
        CerebrasError: If the workers do not start within START_TIMEOUT_S.
    """
    environment = env.read() if environment is None else environment
    if environment.input_report is not None:
        input_rate.write_report(dataset, environment.input_report, environment.input_cpus)
    count, folder = environment.input_workers, environment.input_folder
    if count == 0 or folder is None or environment.role != "chief":
        return dataset
    variant = input_order.maps_last(tf.data.experimental.to_variant(dataset))
    reason = why_not(variant)
    if reason:
        run_log.warning("The input stays in the chief, although %d input workers stand by: %s.", count, reason)
        return dataset
    targets = _summon(folder, count)
    run_log.info("Input is computed by %d input worker(s).", count)
    with warnings.catch_warnings():
        # TensorFlow warns about what its own distribute() does with options in a graph of the 1.x kind.
        warnings.filterwarnings("ignore", message="To make it possible to preserve tf.data options")
        pairs = zip(parts(dataset, variant, count), targets, strict=True)
        return merged([remote(part, target) for part, target in pairs])


def why_not(variant: Any) -> str:
    """Return why a dataset cannot be computed by workers without a change to its batches; empty when it can."""
    graph_def = variant.graph.as_graph_def()
    nodes = [*graph_def.node, *(node for function in graph_def.library.function for node in function.node_def)]
    if any(node.op in PYTHON_OPS for node in nodes):
        return "it calls Python (py_function, numpy_function, from_generator), which cannot leave the process"
    for operation in input_order.upstream(variant.op):
        if operation.type == "OptionsDataset":
            options = dataset_options_pb2.Options.FromString(operation.get_attr("serialized_options"))
            if options.HasField("deterministic") and not options.deterministic:
                return "its options ask for no fixed order (deterministic = False)"
        if operation.type in SHUFFLING:
            seeds = [tf.get_static_value(value) for value in operation.inputs if "seed" in value.op.name]
            if seeds and all(seed is not None and int(seed) == 0 for seed in seeds):
                return "it shuffles without a seed, so that workers would not agree on the order; set tf_random_seed"
    return ""


def find_split(variant: Any) -> Split:
    """Return the cut of a dataset before its last element-wise maps and its batching."""
    operation, batch_size, source = variant.op, 1, variant
    has_batched = False
    while True:
        if operation.type in BATCHING | MAP_AND_BATCH and not has_batched:
            batch_size, has_batched = input_order.batch_size_of(operation), True
        elif operation.type not in ELEMENT_WISE:
            return Split(source, batch_size)
        source = operation.inputs[0]
        operation = source.op


def parts(dataset: Any, variant: Any, count: int) -> list[Any]:
    """Return the datasets of `count` workers: the i-th yields batches i, i + count, i + 2 count, ..."""
    split = find_split(variant)
    graph_def = variant.graph.as_graph_def()
    found = []
    for index in range(count):
        own = tf.data.experimental.to_variant(_own_elements(split, index, count))
        if split.source is not variant:
            (own,) = tf.import_graph_def(
                graph_def,
                input_map={split.source.name: own},
                return_elements=[variant.name],
                name=f"input_worker_{index}",
            )
        found.append(tf.data.experimental.from_variant(own, dataset.element_spec))
    return found


def remote(part: Any, target: str) -> Any:
    """Return a dataset as computed by the tf.data service at a target, grpc://host:port."""
    mode = tf.data.experimental.service.ShardingPolicy.OFF
    return part.apply(tf.data.experimental.service.distribute(processing_mode=mode, service=target))


def merged(datasets: list[Any]) -> Any:
    """Return one dataset that takes a batch from each in turn, and ends at the first that has none left."""
    turns = tf.data.Dataset.range(len(datasets)).repeat()
    return tf.data.Dataset.choose_from_datasets(datasets, turns, stop_on_empty_dataset=True)


def worker_file(folder: Path, index: int) -> Path:
    """Return the file in which an input worker says where it is to be found."""
    return folder / f"input-worker-{index}.json"


def _own_elements(split: Split, index: int, count: int) -> Any:
    operation = split.source.op
    spec = tuple(
        tf.TensorSpec(tf.TensorShape(shape), tf.as_dtype(kind))
        for shape, kind in zip(operation.get_attr("output_shapes"), operation.get_attr("output_types"), strict=True)
    )
    source = tf.data.experimental.from_variant(split.source, spec)
    # tf.equal, because == on tensors compares identity in a graph of the 1.x kind.
    own = source.enumerate().filter(lambda number, _: tf.equal((number // split.batch_size) % count, index))
    return own.map(lambda _, element: element)


def _summon(folder: Path, count: int) -> list[str]:
    """Ask the workers that stand by to start, and return where they serve."""
    (folder / REQUEST_FILE).touch()
    deadline = time.monotonic() + START_TIMEOUT_S
    targets: list[str] = []
    while len(targets) < count:
        path = worker_file(folder, len(targets))
        if path.exists():
            targets.append(json.loads(path.read_text(encoding="utf-8"))["target"])
        elif time.monotonic() > deadline:
            raise CerebrasError(
                f"input worker {len(targets)} of {count} has not started within {START_TIMEOUT_S:.0f} s"
            )
        else:
            time.sleep(POLL_S)
    return targets
