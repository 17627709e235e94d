"""Curves of each run of a CerebrasEstimator: the learning rate and the loss scale, where the graph has them.

The learning rate is the input of TensorFlow's optimizer ops, or else a scalar that the train op uses and that has its
name. The loss scale is a scalar variable of a usual name. The tags are those of the published releases.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from cerebras_tensorflow.runtime.fetches import ancestors
from cerebras_tensorflow.text import is_number

_RATE_INPUT = {
    "ResourceApplyGradientDescent": 1,
    "ResourceApplyMomentum": 2,
    "ResourceApplyKerasMomentum": 2,
    "ResourceApplyAdam": 5,
    "ResourceApplyAdaMax": 4,
    "ResourceApplyAdagrad": 2,
    "ResourceApplyAdagradV2": 2,
    "ResourceApplyRMSProp": 3,
    "ResourceApplyCenteredRMSProp": 4,
    "ResourceApplyAdadelta": 3,
    "ResourceApplyFtrl": 4,
    "ResourceApplyFtrlV2": 4,
}
"""Optimizer's op -> which input is the learning rate."""
_RATE_NAMES = frozenset({"learning_rate", "lr"})
_SCALE_NAMES = frozenset({"loss_scale", "current_loss_scale", "loss_scaling_factor"})
_SAME_VALUE = frozenset({"Identity", "Cast"})
_MOST_RATES = 8


def add_default_curves(graph: tf.Graph, train_op: Any) -> None:
    """Add summaries of the learning rate and the loss scale to the current graph, unless the model has them.

    Args:
        graph: The graph that model_fn built.
        train_op: Its train op.
    """
    words = {word for tensor in graph.get_collection("summaries") for word in _last_name(tensor.op.name)}
    element = graph.as_graph_element(train_op)
    ops = ancestors([element if isinstance(element, tf.Operation) else element.op])
    if not words & _RATE_NAMES:
        rates = _rates(ops)[:_MOST_RATES]
        for number, rate in enumerate(rates):
            tf.compat.v1.summary.scalar("train/lr" if len(rates) == 1 else f"train/lr/{number}", rate)
    scale = _scale(graph, ops)
    if scale is not None and not words & _SCALE_NAMES:
        tf.compat.v1.summary.scalar("train/loss_scale", scale)


def _rates(ops: Iterable[Any]) -> list[Any]:
    """Return the different learning rates, in the order in which the ops were made."""
    ops = sorted(ops, key=lambda op: op._id)  # noqa: SLF001 - no public name for the order
    of_optimizers = [op.inputs[_RATE_INPUT[op.type]] for op in ops if op.type in _RATE_INPUT]
    named = [op.outputs[0] for op in ops if op.outputs and _last_name(_value_name(op)) & _RATE_NAMES]
    found: dict[str, Any] = {}
    for tensor in of_optimizers or named:
        root = tensor
        while root.op.type in _SAME_VALUE:
            root = root.op.inputs[0]
        if _is_scalar(tensor) and root.op.type != "Enter":
            found.setdefault(root.name, tensor)
    return list(found.values())


def _scale(graph: tf.Graph, ops: Iterable[Any]) -> Any:
    """Return the loss scale that the step uses; None if it has none."""
    names = {
        variable.handle.op.name
        for variable in graph.get_collection("variables")
        if _last_name(variable.op.name) & _SCALE_NAMES and hasattr(variable, "handle")
    }
    reads = [op for op in ops if op.type == "ReadVariableOp" and op.inputs[0].op.name in names]
    scalars = [op.outputs[0] for op in reads if _is_scalar(op.outputs[0])]
    return min(scalars, key=lambda tensor: tensor.op._id, default=None)  # noqa: SLF001 - the first, before its update


def _value_name(op: Any) -> str:
    """Return the name of an op, or of the variable that it reads."""
    return str(op.inputs[0].op.name if op.type == "ReadVariableOp" else op.name)


def _is_scalar(tensor: Any) -> bool:
    return bool(tensor.dtype.is_floating and tensor.shape.rank == 0)


def _last_name(name: str) -> set[str]:
    """Return the last part of an op's name, in lower case, without a number: "a/LR_1" gives {"lr"}."""
    last = name.rsplit("/", 1)[-1].lower()
    head, _, number = last.rpartition("_")
    return {head if is_number(number) else last}
