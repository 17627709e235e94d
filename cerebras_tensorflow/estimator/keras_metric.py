"""The value and the update op of a Keras metric in a graph."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

_ASSIGNMENTS = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")


def keras_metric(metric: Any) -> tuple[Any, Any]:
    """Return the value and the update op of a Keras metric of the current graph, and make its variables local.

    A run initializes local variables. Keras 3 keeps no list of its updates, so we take all assignments to the metric's
    variables except the initializers.
    """
    graph = tf.compat.v1.get_default_graph()
    inner = [(variable, getattr(variable, "value", None)) for variable in metric.variables]
    variables: list[Any] = [own if isinstance(own, tf.Variable) else variable for variable, own in inner]
    for name in ("local_variables", "metric_variables"):
        present = {id(variable) for variable in graph.get_collection(name)}
        for variable in variables:
            if id(variable) not in present:
                graph.add_to_collection(name, variable)
    handles = {variable.handle.op.name for variable in variables}
    initializers = {variable.initializer.name for variable in variables}
    updates = [
        operation
        for operation in graph.get_operations()
        if operation.type in _ASSIGNMENTS
        and operation.inputs[0].op.name in handles
        and operation.name not in initializers
    ]
    return tf.convert_to_tensor(metric.result()), tf.group(updates)
