"""Makes the nodes that many rewrites need, with their attributes set."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from cerebras_tensorflow.compiler.nodes.store_calls import INT64
from cerebras_tensorflow.graph.nodes import NodeDef, constant_node


def read_node(name: str, handle: str, dtype: int) -> NodeDef:
    """Return a read of the variable behind a handle; dtype is TensorFlow's number."""
    node = NodeDef(name=name, op="ReadVariableOp", input=[handle])
    node.attr["dtype"].type = dtype
    return node


def assign_node(name: str, handle: str, value: str, dtype: int) -> NodeDef:
    """Return an op that sets the variable behind a handle; dtype is TensorFlow's number."""
    node = NodeDef(name=name, op="AssignVariableOp", input=[handle, value])
    node.attr["dtype"].type = dtype
    return node


def barrier_node(name: str, others: Iterable[str]) -> NodeDef:
    """Return a NoOp that runs after all the other ops."""
    return NodeDef(name=name, op="NoOp", input=[f"^{other}" for other in others])


def slice_nodes(
    name: str, source: str, bounds: tuple[str, str], begin: Sequence[int], size: Sequence[int], dtype: int
) -> list[NodeDef]:
    """Return the nodes that cut a piece out of a tensor; the last one is the piece.

    Args:
        name: Name of the piece.
        source: The tensor.
        bounds: Names of the constants for `begin` and `size`.
        begin: First index of the piece in each dimension.
        size: Size of the piece in each dimension.
        dtype: TensorFlow's number.
    """
    constants = [
        constant_node(text, np.array(numbers, np.int64)) for text, numbers in zip(bounds, (begin, size), strict=True)
    ]
    piece = NodeDef(name=name, op="Slice", input=[source, *bounds])
    piece.attr["T"].type, piece.attr["Index"].type = dtype, INT64
    return [*constants, piece]


def reshape_nodes(name: str, source: str, shape_name: str, shape: Sequence[int], dtype: int) -> list[NodeDef]:
    """Return the nodes that give a tensor another shape; the last one is the result.

    Args:
        name: Name of the result.
        source: The tensor.
        shape_name: Name of the constant for the shape.
        shape: The new shape.
        dtype: TensorFlow's number.
    """
    target = constant_node(shape_name, np.array(shape, np.int64))
    node = NodeDef(name=name, op="Reshape", input=[source, shape_name])
    node.attr["T"].type, node.attr["Tshape"].type = dtype, INT64
    return [target, node]
