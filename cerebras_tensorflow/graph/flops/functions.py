"""The body of a called function as a graph with the shapes of one call."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import tensorflow as tf

from cerebras_tensorflow import tf_private
from cerebras_tensorflow.graph.function_calls import CALLS, callees

_PASSING = ("Identity", "Switch", "Enter")


@dataclass(frozen=True)
class CalledBody:
    """The body of a function for one call.

    Attributes:
        attribute: Attribute of the call that names the function, such as "then_branch"; "" if the op is the function.
        graph: Its ops. Each argument is an op of its name.
        arguments: Names of the arguments, in order.
        results: The tensors that it returns, in order.
    """

    attribute: str
    graph: tf.Graph
    arguments: tuple[str, ...]
    results: tuple[Any, ...]


class Functions:
    """The functions that the ops of a graph call.

    Args:
        graph: The graph. It gets no new functions meanwhile.
    """

    def __init__(self, graph: tf.Graph) -> None:
        self._graph = graph
        self._bodies: dict[str, list[CalledBody]] = {}

    def bodies_of(self, operation: Any) -> list[CalledBody]:
        """Return the functions that an op calls with its inputs; none if it is no call."""
        if operation.type not in CALLS and _is_op(operation.type):
            return []
        if operation.name not in self._bodies:
            functions = {function.signature.name: function for function in self._library.function}
            self._bodies[operation.name] = [
                _body(operation, attribute, functions[name], self._library)
                for attribute, name in callees(operation.node_def)
                if name in functions
            ]
        return self._bodies[operation.name]

    @cached_property
    def _library(self) -> Any:
        return self._graph.as_graph_def().library


@cache
def _is_op(name: str) -> bool:
    """Whether TensorFlow has an op of this name. Otherwise it is a function of the graph."""
    return tf_private.op_definition(name) is not None


def _body(operation: Any, attribute: str, function: Any, library: Any) -> CalledBody:
    arguments = [argument.name for argument in function.signature.input_arg]
    inputs = list(operation.inputs)[-len(arguments) :] if arguments else []  # the first one of If is its condition
    with operation.graph.as_default():
        graph_def, tensor_names = tf_private.graph_of_function(function, [tensor.shape for tensor in inputs])
    graph_def.library.CopyFrom(library)
    for node in graph_def.node:
        if node.name in arguments:
            handle = _variable(inputs[arguments.index(node.name)])
            if handle is not None:  # so that the shape of the weight is known in the body
                handle.name = node.name
                node.CopyFrom(handle)
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(graph_def, name="")
        returned = [tensor_names[function.ret[one.name]] for one in function.signature.output_arg]
        results = tuple(graph.get_tensor_by_name(name if ":" in name else f"{name}:0") for name in returned)
    return CalledBody(attribute, graph, tuple(arguments), results)


def _variable(tensor: Any) -> Any:
    """Return the node of the variable behind a handle; None if it is another tensor."""
    operation = tensor.op
    while operation.type in _PASSING and operation.inputs:
        operation = operation.inputs[0].op
    if operation.type != "VarHandleOp":
        return None
    node = tf.compat.v1.NodeDef()
    node.CopyFrom(operation.node_def)
    if "_class" in node.attr:
        del node.attr["_class"]
    return node
