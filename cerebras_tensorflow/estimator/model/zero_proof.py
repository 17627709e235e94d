"""Proves that a tensor of an optimizer is zero wherever its weight is masked, so that no mask need be applied to it.

The weight, its slots and its masked gradient are zero there. The proof follows element-wise ops from these. It knows
the ops in the lists below; a result of any other op is not proved, so it gets a mask.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import tensorflow as tf

# Zero where their first input is zero.
_UNARY = frozenset({"Identity", "Neg", "Cast", "Square", "Sqrt", "Abs", "Sign", "StopGradient", "Switch"})
# Zero where all inputs are zero.
_ALL = frozenset({"Add", "AddV2", "Sub", "AddN", "Maximum", "Minimum", "Merge"})
_DIVISIONS = frozenset({"RealDiv", "Div"})
_POLES = frozenset({"Rsqrt", "Reciprocal", "Inv"})  # not finite at 0
# Finite where all inputs are finite. Overflow is not considered: the loss shows it.
_FINITE = frozenset(
    {
        *("Abs", "Add", "AddN", "AddV2", "BroadcastTo", "Cast", "ClipByValue", "DivNoNan", "Identity", "Max"),
        *("Maximum", "Mean", "Merge", "Min", "Minimum", "Mul", "Neg", "OnesLike", "Relu", "Reshape", "Sigmoid", "Sign"),
        *("Square", "SquaredDifference", "StopGradient", "Sub", "Sum", "Switch", "Tanh", "ZerosLike"),
    }
)
_WIDE = frozenset({tf.float32, tf.float64, tf.bfloat16})  # a cast to others may turn a small number into 0
_NOT_NEGATIVE = frozenset({"Sqrt", "Square", "Abs", "Relu"})


class ZeroProof:
    """Proofs for the tensors of one weight's update.

    Args:
        shape: Shape of the weight.
        zero: Names of ops whose result is zero where the weight is masked.
        handles: Names of the VarHandleOps of the weight and its slots.
    """

    def __init__(self, shape: Any, zero: Container[str], handles: Container[str]) -> None:
        self._shape = shape
        self._zero = zero
        self._handles = handles
        self._known: dict[str, bool] = {}
        self._known_finite: dict[str, bool] = {}

    def is_zero(self, tensor: Any) -> bool:
        """Whether a tensor is surely zero where the weight is masked."""
        if tensor.name not in self._known:
            self._known[tensor.name] = False  # a loop proves nothing
            self._known[tensor.name] = self._prove(tensor)
        return self._known[tensor.name]

    def _prove(self, tensor: Any) -> bool:
        op = tensor.op
        if op.name in self._zero:
            return True
        if tensor.shape.rank is None or tensor.shape != self._shape:
            return False
        if op.type == "ReadVariableOp":
            return root_handle(op.inputs[0]).name in self._handles
        if op.type in _UNARY:
            return self.is_zero(op.inputs[0])
        if op.type in _ALL:
            return all(self.is_zero(value) for value in op.inputs)
        if op.type == "Mul":
            one, other = op.inputs
            return (self.is_zero(one) and self._is_finite(other)) or (self.is_zero(other) and self._is_finite(one))
        if op.type in _DIVISIONS:
            return self.is_zero(op.inputs[0]) and self._is_divisor(op.inputs[1])
        return op.type == "DivNoNan" and self.is_zero(op.inputs[0])

    def _is_finite(self, tensor: Any) -> bool:
        """Whether a factor is surely finite where the weight is masked."""
        if tensor.name not in self._known_finite:
            self._known_finite[tensor.name] = False  # a loop proves nothing
            self._known_finite[tensor.name] = self._prove_finite(tensor)
        return self._known_finite[tensor.name]

    def _prove_finite(self, tensor: Any) -> bool:
        op = tensor.op
        if tensor.shape.rank == 0:
            return True  # one number for all elements: if it is not finite, the weights in use show it
        if op.type in ("ReadVariableOp", "Const") or self.is_zero(tensor):
            return True
        if op.type == "Sqrt":
            return _is_not_negative(op.inputs[0]) and self._is_finite(op.inputs[0])
        if op.type in _POLES:
            return self._is_divisor(op.inputs[0])
        if op.type in _DIVISIONS:
            return self._is_finite(op.inputs[0]) and self._is_divisor(op.inputs[1])
        return op.type in _FINITE and all(self._is_finite(value) for value in op.inputs)

    def _is_divisor(self, tensor: Any) -> bool:
        """Whether 0 divided by a tensor is 0."""
        return tensor.shape.rank == 0 or (is_positive(tensor) and self._is_finite(tensor))


def root_handle(tensor: Any) -> Any:
    """Return the VarHandleOp behind a handle that was passed on, for example into a branch."""
    op = tensor.op
    while op.type in ("Identity", "Switch", "Enter") and op.inputs:
        op = op.inputs[0].op
    return op


def is_positive(tensor: Any) -> bool:
    """Whether all elements are more than 0 or NaN: a positive constant plus something not negative, or its root."""
    constant = tf.get_static_value(tensor) if tensor.shape.rank == 0 else None
    if constant is not None:
        return bool(constant > 0)
    op = tensor.op
    if op.type in ("Identity", "Sqrt") or (op.type == "Cast" and tensor.dtype in _WIDE):
        return is_positive(op.inputs[0])
    if op.type in ("Add", "AddV2"):
        one, other = op.inputs
        return (is_positive(one) and _is_not_negative(other)) or (is_positive(other) and _is_not_negative(one))
    return op.type == "Maximum" and any(is_positive(value) for value in op.inputs)


def _is_not_negative(tensor: Any) -> bool:
    op = tensor.op
    if op.type in ("Identity", "Cast"):
        return _is_not_negative(op.inputs[0])
    return op.type in _NOT_NEGATIVE or is_positive(tensor)
