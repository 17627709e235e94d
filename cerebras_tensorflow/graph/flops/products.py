"""Floating-point operations of one matrix product or convolution."""

from __future__ import annotations

from typing import Any

import numpy as np


def product_flops(operation: Any) -> int:
    """Return multiply-adds x 2 of a matrix product or convolution; 0 for other ops. An unknown dim counts as 1."""
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


def _dims(tensor: Any) -> list[int]:
    return [dim or 1 for dim in tensor.shape.as_list()] if tensor.shape.rank is not None else []
