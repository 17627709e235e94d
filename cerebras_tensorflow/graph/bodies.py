"""The nodes of a graph or of a function's body while a pass rewrites them.

The two differ in how an input refers to an output: a graph says "node:1", a function "node:output_name:0".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.graph.nodes import FunctionDef, GraphDef, NodeDef, NodeTable, constant_node, parse_input

UINT64 = tf.uint64.as_datatype_enum


class Body:
    """New nodes of a graph or of a function.

    Args:
        is_function: Whether the nodes are those of a function's body.
    """

    def __init__(self, is_function: bool) -> None:
        self._is_function = is_function
        self.nodes: list[NodeDef] = []

    def add(
        self,
        name: str,
        op: str,
        inputs: Iterable[str],
        types: Mapping[str, int] | None = None,
        output: str = "output",
    ) -> str:
        """Add a node and return the text by which an input refers to its first output.

        Args:
            name: Of the node.
            op: Its type.
            inputs: Control inputs last.
            types: Its attributes that are dtypes, as enum numbers.
            output: The op's name for its first output.
        """
        node = NodeDef(name=name, op=op, input=list(inputs))
        for key, dtype in (types or {}).items():
            node.attr[key].type = dtype
        self.nodes.append(node)
        return self.refer(name, output)

    def constant(self, name: str, value: np.ndarray | np.generic, control: Iterable[str] = ()) -> str:
        """Add a constant, which may have control inputs, and return the text that refers to it."""
        node = constant_node(name, value)
        node.input.extend(control)
        self.nodes.append(node)
        return self.refer(name, "output")

    def refer(self, name: str, output: str, port: int = 0) -> str:
        """Return the text by which an input refers to an output of a node.

        Args:
            name: Of the node.
            output: The op's name for the output.
            port: Its number among the node's outputs.
        """
        if self._is_function:
            return f"{name}:{output}:0"
        return name if port == 0 else f"{name}:{port}"


def data_inputs(node: NodeDef) -> list[str]:
    """Return a node's inputs without its control inputs, as they are written."""
    return [text for text in node.input if not text.startswith("^")]


def control_inputs(node: NodeDef) -> list[str]:
    """Return a node's control inputs, as they are written ("^name")."""
    return [text for text in node.input if text.startswith("^")]


def source_of(text: str) -> str:
    """Return the node that an input refers to, in a graph ("a:1", "^a") or in a function ("a:output:0").

    >>> source_of("a:1"), source_of("^a"), source_of("a:output:0"), source_of("argument")
    ('a', 'a', 'a', 'argument')
    """
    return text.split(":")[0] if text.count(":") == 2 else parse_input(text).node


def table_of_function(function: FunctionDef) -> NodeTable:
    """Return the nodes of a function's body by name, its arguments among them. Inputs lose their ports."""
    graph_def = GraphDef()
    for argument in function.signature.input_arg:
        graph_def.node.add(name=argument.name, op="_Arg")
    for node in function.node_def:
        copy = graph_def.node.add()
        copy.CopyFrom(node)
        del copy.input[:]
        copy.input.extend(("^" if text.startswith("^") else "") + source_of(text) for text in node.input)
    return NodeTable(graph_def)
