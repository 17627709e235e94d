"""New nodes for a graph or a function's body.

An input is written "node:1" in a graph, and "node:output_name:0" in a function.
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
        is_function: Whether the nodes belong to a function's body.
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
        """Add a node and return the input string for its first output.

        Args:
            name: Name of the node.
            op: Its type.
            inputs: Input strings, control inputs last.
            types: Attribute -> dtype, as an enum number.
            output: The op's name for its first output.
        """
        node = NodeDef(name=name, op=op, input=list(inputs))
        for key, dtype in (types or {}).items():
            node.attr[key].type = dtype
        self.nodes.append(node)
        return self.refer(name, output)

    def constant(self, name: str, value: np.ndarray | np.generic, control: Iterable[str] = ()) -> str:
        """Add a constant, with control inputs if given, and return its input string."""
        node = constant_node(name, value)
        node.input.extend(control)
        self.nodes.append(node)
        return self.refer(name, "output")

    def refer(self, name: str, output: str, port: int = 0) -> str:
        """Return the input string for an output of a node.

        Args:
            name: Name of the node.
            output: The op's name for the output.
            port: Index of the output.
        """
        if self._is_function:
            return f"{name}:{output}:0"
        return name if port == 0 else f"{name}:{port}"


def data_inputs(node: NodeDef) -> list[str]:
    """Return the input strings of a node, without its control inputs."""
    return [text for text in node.input if not text.startswith("^")]


def control_inputs(node: NodeDef) -> list[str]:
    """Return the control inputs of a node, as strings ("^name")."""
    return [text for text in node.input if text.startswith("^")]


def source_of(text: str) -> str:
    """Return the node that an input refers to, in a graph ("a:1", "^a") or in a function ("a:output:0").

    >>> source_of("a:1"), source_of("^a"), source_of("a:output:0"), source_of("argument")
    ('a', 'a', 'a', 'argument')
    """
    return text.split(":")[0] if text.count(":") == 2 else parse_input(text).node


def table_of_function(function: FunctionDef) -> NodeTable:
    """Return a function's nodes and arguments as a table. Inputs lose their ports."""
    graph_def = GraphDef()
    for argument in function.signature.input_arg:
        graph_def.node.add(name=argument.name, op="_Arg")
    for node in function.node_def:
        copy = graph_def.node.add()
        copy.CopyFrom(node)
        del copy.input[:]
        copy.input.extend(("^" if text.startswith("^") else "") + source_of(text) for text in node.input)
    return NodeTable(graph_def)
