"""Bytes of the outputs of each op."""

from __future__ import annotations

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
    result = {}
    shared: dict[Output, Output] = {}  # layers of a deep model have equal outputs
    for operation in graph.get_operations():
        outputs = []
        for tensor in operation.outputs:
            dtype = tensor.dtype.base_dtype
            if dtype in (tf.resource, tf.variant, tf.string) or tensor.shape.rank is None:
                outputs.append(Output(dtype.name, None, 0))
                continue
            dims = tensor.shape.as_list()
            elements = int(np.prod([dim or 1 for dim in dims], dtype=np.int64))
            shape = None if None in dims else tuple(dims)
            outputs.append(Output(np.dtype(dtype.as_numpy_dtype).name, shape, elements * dtype.size))
        result[operation.name] = [shared.setdefault(output, output) for output in outputs]
    return result


def output_bytes(graph: tf.Graph) -> dict[str, int]:
    """Return bytes of all outputs by op name, from static shapes; an unknown dim counts as 1."""
    return {name: sum(output.num_bytes for output in outputs) for name, outputs in op_outputs(graph).items()}
