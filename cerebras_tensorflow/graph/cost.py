"""Bytes of the outputs of each op."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import tensorflow as tf


@dataclass(frozen=True, slots=True)
class Output:
    """One output of an op.

    Attributes:
        dtype: NumPy's name of the dtype.
        shape: The shape; None if a dim is unknown.
        num_bytes: Size [B]; an unknown dim counts as 1.
    """

    dtype: str
    shape: tuple[int, ...] | None
    num_bytes: int


def op_outputs(graph: tf.Graph) -> dict[str, list[Output]]:
    """Return the outputs of each op by its name, from static shapes; handles and strings count as 0 bytes."""
    made: dict[tuple[tf.DType, tuple[int | None, ...] | None], Output] = {}  # layers of a deep model have equal outputs
    result = {}
    for operation in graph.get_operations():
        outputs = []
        for tensor in operation.outputs:
            key = _type_and_dims(tensor)
            if key not in made:
                made[key] = _output(*key)
            outputs.append(made[key])
        result[operation.name] = outputs
    return result


def tensor_bytes(tensor: tf.Tensor) -> int:
    """Return the size of a tensor [B] from its static shape; an unknown dim counts as 1, handles and strings as 0."""
    return _output(*_type_and_dims(tensor)).num_bytes


def _type_and_dims(tensor: tf.Tensor) -> tuple[tf.DType, tuple[int | None, ...] | None]:
    return tensor.dtype.base_dtype, None if tensor.shape.rank is None else tuple(tensor.shape.as_list())


def _output(dtype: tf.DType, dims: tuple[int | None, ...] | None) -> Output:
    if dtype in (tf.resource, tf.variant, tf.string) or dims is None:
        return Output(dtype.name, None, 0)
    known = tuple(dim for dim in dims if dim is not None)
    elements = math.prod(known)
    shape = known if len(known) == len(dims) else None
    return Output(np.dtype(dtype.as_numpy_dtype).name, shape, elements * dtype.size)


def output_bytes(graph: tf.Graph) -> dict[str, int]:
    """Return bytes of all outputs by op name, from static shapes; an unknown dim counts as 1."""
    return {name: sum(output.num_bytes for output in outputs) for name, outputs in op_outputs(graph).items()}
