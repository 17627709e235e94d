"""Proves that a tensor of an optimizer is zero wherever its weight is masked, so that no mask need be applied to it.

The weight, its slots and its masked gradient are zero there. The proof follows element-wise ops from these.
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
            return (self.is_zero(one) and _is_finite(other)) or (self.is_zero(other) and _is_finite(one))
        if op.type in _DIVISIONS:
            return self.is_zero(op.inputs[0]) and (op.inputs[1].shape.rank == 0 or _is_positive(op.inputs[1]))
        return op.type == "DivNoNan" and self.is_zero(op.inputs[0])


def root_handle(tensor: Any) -> Any:
    """Return the VarHandleOp behind a handle that was passed on, for example into a branch."""
    op = tensor.op
    while op.type in ("Identity", "Switch", "Enter") and op.inputs:
        op = op.inputs[0].op
    return op


def _is_finite(tensor: Any) -> bool:
    """Whether no op on the way to a factor has a pole at zero. Overflow is not considered: the loss shows it."""
    op = tensor.op
    if op.type in _POLES:
        return _is_positive(op.inputs[0])
    if op.type in _DIVISIONS:
        return op.inputs[1].shape.rank == 0 or _is_positive(op.inputs[1])
    if op.type in ("Mul", "Identity", "Neg", "Cast"):
        return all(_is_finite(value) for value in op.inputs)
    return True


def _is_positive(tensor: Any) -> bool:
    """Whether all elements are more than 0: a sum of something not negative and a positive constant, or its root."""
    op = tensor.op
    if op.type in ("Identity", "Sqrt", "Cast"):
        return _is_positive(op.inputs[0])
    constant = tf.get_static_value(tensor) if tensor.shape.rank == 0 else None
    if constant is not None:
        return bool(constant > 0)
    if op.type in ("Add", "AddV2"):
        one, other = op.inputs
        return (_is_positive(one) and _is_not_negative(other)) or (_is_positive(other) and _is_not_negative(one))
    return op.type == "Maximum" and any(_is_positive(value) for value in op.inputs)


def _is_not_negative(tensor: Any) -> bool:
    op = tensor.op
    if op.type in ("Identity", "Cast"):
        return _is_not_negative(op.inputs[0])
    # A slot of squares may be read directly: Sqrt of a negative one would be NaN for the unmasked weights too.
    return op.type in _NOT_NEGATIVE or _is_positive(tensor)
