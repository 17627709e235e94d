"""Finds the slots of weights: the variables in which an optimizer keeps its state of each element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from cerebras_tensorflow.estimator.model.partitions import PartKey, checkpoint_key
from cerebras_tensorflow.estimator.model.zero_proof import root_handle
from cerebras_tensorflow.graph.variables import READ_OPS, may_change_model

NO_CHANGE = READ_OPS | {"Identity", "Switch", "Enter", "VarIsInitializedOp"}
"""Ops that take the handle of a variable and do not change its value."""


def slots_of(graph: tf.Graph, weights: Mapping[str, Any], train_ops: Sequence[Any]) -> dict[str, list[Any]]:
    """Return weight -> its slots.

    A slot has the shape of its weight, is not trainable, and the train op changes it. In addition:

    - one op of the optimizer writes it together with the weight, or
    - its name is below `<weight>/` or `<scope>/<weight>/`, or
    - it is named `<scope>/<weight>`, and the new value of the weight is computed from it element by element.

    So a frozen or averaged copy of the weight, such as `teacher/<weight>`, is no slot.

    Args:
        graph: The graph of the training step.
        weights: Trainable variables, by their names in checkpoints.
        train_ops: The ops of the training step.
    """
    names = {variable.handle.op.name: name for name, variable in weights.items()}
    changed: set[str] = set()
    writes: dict[str, list[Any]] = {name: [] for name in weights}
    for op in train_ops:
        roots = _handles(op)
        changed |= set() if op.type in NO_CHANGE else roots
        for root in roots & set(names) if may_change_model(op.type) else ():
            writes[names[root]].append(op)
    slots: dict[str, list[Any]] = {}
    for variable in graph.get_collection("variables"):
        key, handle = checkpoint_key(variable), variable.handle.op.name
        if isinstance(key, PartKey) or handle in names or handle not in changed:
            continue
        alike = [name for name, weight in weights.items() if weight.shape == variable.shape]
        owners = [name for name in alike if any(handle in _handles(op) for op in writes[name])]
        owners = owners or [name for name in alike if f"/{name}/" in f"/{key}"]
        owners = owners or [
            name
            for name in alike
            if key.endswith(f"/{name}") and handle in _elementwise_sources(writes[name], variable.shape)
        ]
        if owners:
            slots.setdefault(max(owners, key=len), []).append(variable)
    return slots


def _handles(op: Any) -> set[str]:
    return {root_handle(tensor).name for tensor in op.inputs if tensor.dtype == tf.resource}


def _elementwise_sources(writes: Sequence[Any], shape: tf.TensorShape) -> set[str]:
    """Return the handles of the variables from which written values are computed by ops of one shape."""
    sources: set[str] = set()
    seen: set[str] = set()
    pending = [tensor for op in writes for tensor in op.inputs]
    while pending:
        tensor = pending.pop()
        if tensor.op.name in seen or tensor.dtype == tf.resource or tensor.shape.rank is None or tensor.shape != shape:
            continue
        seen.add(tensor.op.name)
        sources |= _handles(tensor.op)
        pending.extend(tensor.op.inputs)
    return sources
