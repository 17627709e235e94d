"""Small graphs for tests."""

from __future__ import annotations

from cerebras_tensorflow.graph.nodes import GraphDef, NodeDef, NodeTable


def table(**inputs: str) -> NodeTable:
    """Nodes by name, with their inputs in one string; `name__Op` gives the op."""
    graph_def = GraphDef()
    for word, needs in inputs.items():
        name, _, op = word.partition("__")
        graph_def.node.append(NodeDef(name=name, op=op or "NoOp", input=needs.split()))
    return NodeTable(graph_def)
