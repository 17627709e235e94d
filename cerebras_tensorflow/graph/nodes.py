"""The nodes of a GraphDef with inputs, consumers and a topological order. All passes use it."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import tensorflow as tf

from cerebras_tensorflow.errors import CompileError

if TYPE_CHECKING:
    NodeDef: TypeAlias = Any
    GraphDef: TypeAlias = Any
    FunctionDef: TypeAlias = Any
else:
    GraphDef = tf.compat.v1.GraphDef
    NodeDef = tf.compat.v1.NodeDef
    FunctionDef = type(GraphDef().library.function.add())  # TensorFlow has no public name for it


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One input of a node: output `port` of node `node`, or a control edge if port is -1."""

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
    if colon and port.isdigit():
        return Endpoint(node, int(port))
    return Endpoint(text, 0)


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
        parsed = {text: parse_input(text) for node in graph_def.node for text in node.input}
        self.inputs: dict[str, list[Endpoint]] = {
            name: [parsed[text] for text in node.input] for name, node in self.nodes.items()
        }
        self.consumers: dict[str, list[str]] = {name: [] for name in self.nodes}
        for name, inputs in self.inputs.items():
            for source in dict.fromkeys(endpoint.node for endpoint in inputs):
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


class CycleError(CompileError):
    """The edges of a graph form a cycle; `nodes` lists the nodes that could not be ordered."""

    def __init__(self, nodes: list[str]) -> None:
        super().__init__(f"the graph has a cycle through {', '.join(nodes[:4])}")
        self.nodes = nodes


def nodes_before(table: NodeTable, name: str) -> set[str]:
    """Names of the direct inputs of a node, without the back edges of while loops."""
    before = {endpoint.node for endpoint in table.inputs[name]}
    if table.nodes[name].op in ("Merge", "RefMerge"):
        before = {node for node in before if table.nodes[node].op not in ("NextIteration", "RefNextIteration")}
    return before


def order_nodes(
    table: NodeTable,
    extra_edges: Mapping[str, Iterable[str]] | None = None,
    sources: Iterable[str] = (),
    early: Iterable[str] = (),
) -> list[str]:
    """Return all nodes in a topological order that keeps few values alive at a time.

    Nodes that depend on the sources (the batch) keep the program's order, except that `early` nodes come as soon as
    possible. Other nodes (a weight's read, a decayed moment, a random mask) come just before their first use.

    Args:
        table: The graph.
        extra_edges: Node -> more nodes that must come before it.
        sources: Nodes whose descendants drive the order.
        early: Nodes to place as soon as their inputs are ready (weight updates, each right after its gradient).

    Raises:
        CycleError: If the edges form a cycle. Loops of tf.while_loop are allowed and cut at NextIteration.
    """
    before = {name: nodes_before(table, name) | set((extra_edges or {}).get(name, ())) for name in table.nodes}
    after: dict[str, list[str]] = {name: [] for name in table.nodes}
    for name, nodes in before.items():
        for node in nodes:
            after[node].append(name)
    drivers = _reachable(after, sources)
    waiting = {name: sum(node in drivers for node in before[name]) for name in drivers}
    early_nodes = set(early)
    heap = [(name not in early_nodes, table.index[name], name) for name, count in waiting.items() if count == 0]
    heapq.heapify(heap)
    order: dict[str, None] = {}
    while heap:
        name = heapq.heappop(heap)[-1]
        _place_with_needs(name, before, order)
        for follower in after[name]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                heapq.heappush(heap, (follower not in early_nodes, table.index[follower], follower))
    stuck = [name for name, count in waiting.items() if count > 0]
    if stuck:
        raise CycleError(stuck)
    for name in table.nodes:
        _place_with_needs(name, before, order)
    return list(order)


def _reachable(edges: Mapping[str, Iterable[str]], roots: Iterable[str]) -> set[str]:
    reached: set[str] = set()
    pending = list(roots)
    while pending:
        name = pending.pop()
        if name not in reached:
            reached.add(name)
            pending.extend(edges[name])
    return reached


def _place_with_needs(name: str, before: Mapping[str, set[str]], order: dict[str, None]) -> None:
    """Append a node to the order, after its missing ancestors (depth first, without recursion)."""
    if name in order:
        return
    stack = [(name, iter(sorted(before[name])))]
    open_nodes = {name}
    while stack:
        current, needs = stack[-1]
        for need in needs:
            if need in order:
                continue
            if need in open_nodes:
                raise CycleError([need, current])
            open_nodes.add(need)
            stack.append((need, iter(sorted(before[need]))))
            break
        else:
            stack.pop()
            open_nodes.discard(current)
            order[current] = None
