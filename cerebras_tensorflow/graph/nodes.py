"""The nodes of a GraphDef with inputs and consumers. All passes use it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.errors import CompileError
from cerebras_tensorflow.text import is_number

if TYPE_CHECKING:
    NodeDef: TypeAlias = Any
    GraphDef: TypeAlias = Any
    FunctionDef: TypeAlias = Any
else:
    GraphDef = tf.compat.v1.GraphDef
    NodeDef = tf.compat.v1.NodeDef
    FunctionDef = type(GraphDef().library.function.add())  # TensorFlow has no public name for it


class Endpoint(NamedTuple):
    """One input of a node: output `port` of node `node`, or a control edge if port is -1.

    A tuple, because a compilation makes and hashes millions.
    """

    node: str
    port: int

    @property
    def is_control(self) -> bool:
        """Whether this is a control edge."""
        return self.port < 0

    def __str__(self) -> str:
        if self.is_control:
            return f"^{self.node}"
        return self.node if self.port == 0 else f"{self.node}:{self.port}"


def parse_input(text: str) -> Endpoint:
    """Return the endpoint that a NodeDef's input string names.

    >>> parse_input("^a"), parse_input("a:2"), parse_input("a")
    (Endpoint(node='a', port=-1), Endpoint(node='a', port=2), Endpoint(node='a', port=0))
    """
    if text.startswith("^"):
        return Endpoint(text[1:], -1)
    node, colon, port = text.rpartition(":")
    if colon and is_number(port):
        return Endpoint(node, int(port))
    return Endpoint(text, 0)


def copied(message: Any) -> Any:
    """Return a copy of a NodeDef, a FunctionDef or a GraphDef."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


_DATA_TYPES = {
    np.dtype(np.int32): tf.int32.as_datatype_enum,
    np.dtype(np.int64): tf.int64.as_datatype_enum,
    np.dtype(np.float32): tf.float32.as_datatype_enum,
}


def constant_node(name: str, value: np.ndarray | np.generic) -> NodeDef:
    """Return a Const node with a given value."""
    node = NodeDef(name=name, op="Const")
    # tf.make_tensor_proto is slower than the rest of this function together, and a step has many constants.
    array = np.ascontiguousarray(value)
    dtype = _DATA_TYPES.get(array.dtype) or tf.as_dtype(array.dtype).as_datatype_enum
    node.attr["dtype"].type = dtype
    tensor = node.attr["value"].tensor
    tensor.dtype = dtype
    tensor.tensor_shape.SetInParent()
    for dim in np.shape(value):
        tensor.tensor_shape.dim.add().size = dim
    tensor.tensor_content = array.tobytes()
    return node


class NodeTable:
    """The nodes of one GraphDef by name, with their consumers. Read-only: passes make new nodes."""

    def __init__(self, graph_def: GraphDef) -> None:
        self.graph_def = graph_def
        self.nodes: dict[str, NodeDef] = {node.name: node for node in graph_def.node}
        self.index: dict[str, int] = {name: i for i, name in enumerate(self.nodes)}
        self.inputs: dict[str, list[Endpoint]] = {}
        self.consumers: dict[str, list[str]] = {name: [] for name in self.nodes}
        parsed: dict[str, Endpoint] = {}
        for name, node in self.nodes.items():
            inputs = self.inputs[name] = []
            for text in node.input:
                endpoint = parsed.get(text)
                if endpoint is None:
                    endpoint = parsed[text] = parse_input(text)
                inputs.append(endpoint)
            for source in {endpoint.node: None for endpoint in inputs}:
                self.consumers[source].append(name)

    def data_inputs(self, name: str) -> list[Endpoint]:
        """Inputs of a node without its control edges, in order."""
        return [endpoint for endpoint in self.inputs[name] if not endpoint.is_control]

    def ancestors(self, roots: Iterable[str]) -> set[str]:
        """Names of the roots and of all nodes that they depend on."""
        reached: set[str] = set()
        pending = list(roots)
        while pending:
            name = pending.pop()
            if name in reached:
                continue
            reached.add(name)
            pending.extend(endpoint.node for endpoint in self.inputs[name])
        return reached

    def descendants(self, roots: Iterable[str]) -> set[str]:
        """Names of all nodes that depend on a root."""
        reached: set[str] = set()
        pending = [consumer for root in roots for consumer in self.consumers[root]]
        while pending:
            name = pending.pop()
            if name in reached:
                continue
            reached.add(name)
            pending.extend(self.consumers[name])
        return reached


def reachable(edges: Mapping[str, Iterable[str]], roots: Iterable[str]) -> set[str]:
    """Return the roots and all names that edges lead to from them. A name without an entry has no edges."""
    reached: set[str] = set()
    pending = list(roots)
    while pending:
        name = pending.pop()
        if name not in reached:
            reached.add(name)
            pending.extend(edges.get(name, ()))
    return reached


def prune(graph_def: GraphDef, roots: Iterable[str]) -> GraphDef:
    """Return a copy with the roots, their ancestors in the same order, and the function library.

    The copy has no colocation constraints, since they may name removed nodes. Placement follows the variables' handles.

    Raises:
        CompileError: If a root is not in the graph.
    """
    nodes = {node.name: node for node in graph_def.node}
    roots = list(roots)
    missing = [root for root in roots if root not in nodes]
    if missing:
        raise CompileError(f"the step asks for {', '.join(missing[:3])}, which the graph does not have")
    keep: set[str] = set()
    while roots:
        name = roots.pop()
        if name not in keep:
            keep.add(name)
            roots.extend(parse_input(text).node for text in nodes[name].input)
    pruned = GraphDef(versions=graph_def.versions, library=graph_def.library)
    pruned.node.extend(node for node in graph_def.node if node.name in keep)
    for node in pruned.node:
        if "_class" in node.attr:
            del node.attr["_class"]
    return pruned
