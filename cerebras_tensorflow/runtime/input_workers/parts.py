"""Cuts a dataset into the parts of W workers: worker i computes batches i, i + W, i + 2 W, ...

Every worker runs the steps before the cut (reading, shuffling, repeating) on all elements, with the same seeds, and
drops the elements of other workers. It runs the steps after the cut, the last maps and the batching, on its own
batches only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from cerebras_tensorflow.runtime.input_workers.order import (
    BATCHING,
    MAP_AND_BATCH,
    MAPS,
    PASSING,
    batch_size_of,
    map_has_state,
)


@dataclass(frozen=True)
class Split:
    """Where a dataset is cut: every worker computes `source`, and `batch_size` elements of it make one batch."""

    source: Any
    batch_size: int


def find_split(variant: Any) -> Split:
    """Return the cut of a dataset before its last element-wise maps and its batching.

    A map that keeps state, such as a random op, is before the cut. Each worker then calls it for every element, so it
    draws the same numbers as without workers.
    """
    operation, batch_size, source = variant.op, 1, variant
    has_batched = False
    while True:
        keeps_state = operation.type in MAPS | MAP_AND_BATCH and map_has_state(operation)
        if operation.type in BATCHING | MAP_AND_BATCH and not has_batched and not keeps_state:
            batch_size, has_batched = batch_size_of(operation), True
        elif operation.type not in MAPS | PASSING or keeps_state:
            return Split(source, batch_size)
        source = operation.inputs[0]
        operation = source.op


def part(variant: Any, spec: Any, index: int, count: int, first_batch: int = 0) -> Any:
    """Return the dataset of one worker.

    Args:
        variant: Tensor of the whole dataset, in the current graph.
        spec: TensorSpecs of its elements.
        index: Number of the part.
        count: Number of parts, one for each worker.
        first_batch: Number of the worker's batches to skip. Their elements are dropped before the maps.
    """
    split = find_split(variant)
    own = tf.data.experimental.to_variant(_own_elements(split, index, count, first_batch))
    if split.source is not variant:
        (own,) = tf.import_graph_def(
            variant.graph.as_graph_def(),
            input_map={split.source.name: own},
            return_elements=[variant.name],
            name=f"input_worker_{index}",
        )
    return tf.data.experimental.from_variant(own, spec)


def _own_elements(split: Split, index: int, count: int, first_batch: int) -> Any:
    operation = split.source.op
    spec = tuple(
        tf.TensorSpec(tf.TensorShape(shape), tf.as_dtype(kind))
        for shape, kind in zip(operation.get_attr("output_shapes"), operation.get_attr("output_types"), strict=True)
    )
    source = tf.data.experimental.from_variant(split.source, spec)
    if count == 1:
        return source.skip(first_batch * split.batch_size)
    first = index + first_batch * count

    def is_own(number: tf.Tensor, _: Any) -> tf.Tensor:
        batch = number // split.batch_size
        # tf.equal, because == compares tensors by identity in a TensorFlow 1.x graph.
        return tf.logical_and(tf.equal(batch % count, index), batch >= first)

    return source.enumerate().filter(is_own).map(lambda _, element: element)
