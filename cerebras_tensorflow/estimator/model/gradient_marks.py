"""Marks the gradients that model_fn computes. The compiler replaces them by their totals over micro-batches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from cerebras_tensorflow import tf_private
from cerebras_tensorflow.graph.micro_batches import Mark

_MARKS = "cs_gradient_marks"  # name of the graph's collection


@contextmanager
def marked_gradients(graph: tf.Graph) -> Iterator[None]:
    """Mark the gradients with respect to variables that model_fn computes while it runs.

    Each gradient passes through an Identity op. A collection of the graph lists these ops. Gradients with respect to
    other tensors, and those computed inside a tf.function, are not marked.

    Args:
        graph: The graph that model_fn builds.
    """

    def change(gradients: Any, sources: Any) -> Any:
        if tf.compat.v1.get_default_graph() is not graph:
            return gradients
        found = zip(tf.nest.flatten(gradients), tf.nest.flatten(sources), strict=True)
        changed = [_marked(graph, gradient, _variable_of(source)) for gradient, source in found]
        return tf.nest.pack_sequence_as(sources, changed)

    with tf_private.gradients_passed_through(change):
        yield


def marks_of(graph: tf.Graph) -> tuple[Mark, ...]:
    """Return the marks in a graph."""
    return tuple(Mark(*json.loads(text)) for text in graph.get_collection(_MARKS))


def _variable_of(source: Any) -> str | None:
    """Return the VarHandleOp of a variable, or of its handle; None for another tensor."""
    handle = getattr(source, "handle", source)
    operation = getattr(handle, "op", None) if getattr(handle, "dtype", None) == tf.resource else None
    while operation is not None and operation.type in ("Identity", "Switch", "Enter"):
        operation = operation.inputs[0].op
    return operation.name if operation is not None and operation.type == "VarHandleOp" else None


def _marked(graph: tf.Graph, gradient: Any, variable: str | None) -> Any:
    if gradient is None or variable is None:
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        values, rows = _identity(gradient.values), _identity(gradient.indices)
        _add_mark(graph, variable, values.op.name, rows.op.name)
        return tf.IndexedSlices(values, rows, gradient.dense_shape)
    values = _identity(gradient)
    _add_mark(graph, variable, values.op.name)
    return values


def _add_mark(graph: tf.Graph, *names: str) -> None:
    """Add the names of a Mark as text, which TensorFlow can write into a MetaGraphDef."""
    graph.add_to_collection(_MARKS, json.dumps(names))


def _identity(tensor: Any) -> Any:
    return tf.identity(tensor, name="cs_gradient")
