"""Cost of each op: bytes of its outputs, and floating-point operations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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


def flops(graph: tf.Graph, names: Mapping[str, Any] | set[str]) -> int:
    """Return multiply-adds x 2 of the matrix products and convolutions among the named ops.

    Other ops are left out: in the models we target they take a few percent.
    """
    return sum(flops_of_ops(graph, names).values())


def flops_of_ops(graph: tf.Graph, names: Mapping[str, Any] | set[str]) -> dict[str, int]:
    """Return the count of `flops` for each op; ops with a count of 0 are left out."""
    counts = {op.name: _op_flops(op) for op in graph.get_operations() if op.name in names}
    return {name: count for name, count in counts.items() if count}


def _dims(tensor: Any) -> list[int]:
    return [dim or 1 for dim in tensor.shape.as_list()] if tensor.shape.rank is not None else []


def _op_flops(operation: Any) -> int:
    if operation.type in ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"):
        left, out = _dims(operation.inputs[0]), _dims(operation.outputs[0])
        if len(left) < 2 or not out:
            return 0
        transposed = operation.get_attr("transpose_a" if operation.type == "MatMul" else "adj_x")
        return 2 * int(np.prod(out, dtype=np.int64)) * (left[-2] if transposed else left[-1])
    if operation.type in ("Conv2D", "Conv3D"):
        return _convolution_flops(_dims(operation.outputs[0]), _dims(operation.inputs[1]))
    if operation.type.endswith("BackpropInput") or operation.type.endswith("BackpropInputV2"):
        return _convolution_flops(_dims(operation.inputs[2]), _dims(operation.inputs[1]))
    if operation.type.endswith("BackpropFilter") or operation.type.endswith("BackpropFilterV2"):
        return _convolution_flops(_dims(operation.inputs[2]), _dims(operation.outputs[0]))
    if operation.type == "Einsum":
        return _einsum_flops(operation)
    return 0


def _convolution_flops(out: list[int], kernel: list[int]) -> int:
    """Return the count of a convolution from its output and its kernel; the last dim of both is the channels out."""
    if not kernel or not out:
        return 0
    return 2 * int(np.prod(out, dtype=np.int64)) * int(np.prod(kernel[:-1], dtype=np.int64))


def _einsum_flops(operation: Any) -> int:
    """Return the count of an einsum of two operands without "...": one multiply-add for each combination of labels."""
    equation = operation.get_attr("equation").decode().replace(" ", "").partition("->")[0]
    labels = equation.split(",")
    if len(labels) != 2 or "." in equation:
        return 0
    sizes: dict[str, int] = {}
    for names, tensor in zip(labels, operation.inputs, strict=True):
        sizes.update(zip(names, _dims(tensor), strict=False))
    return 2 * int(np.prod(list(sizes.values()), dtype=np.int64))
