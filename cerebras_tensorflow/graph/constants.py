"""Merge equal constants.

Many nodes of a step are constants: shapes, permutations, and the bounds of weight slices. TensorFlow keeps several
copies of each node, 10 kB in all, so merging constants makes the graph of a deep model much smaller.
"""

from __future__ import annotations

from collections.abc import Container

from cerebras_tensorflow.graph.nodes import GraphDef, parse_input

_MOST_BYTES = 1 << 12  # larger constants are rare and slow to compare


def share_constants(graph_def: GraphDef, kept: Container[str]) -> GraphDef:
    """Return the graph with equal constants merged into the first of them.

    Constants with control inputs stay, for example those in branches and loops.

    Args:
        graph_def: A step.
        kept: Names of nodes that must stay.
    """
    first: dict[tuple[str, bytes], str] = {}
    instead: dict[str, str] = {}
    for node in graph_def.node:
        if node.op == "Const" and not node.input and node.attr["value"].ByteSize() <= _MOST_BYTES:
            key = (node.device, node.attr["value"].SerializeToString(deterministic=True))
            name = first.setdefault(key, node.name)
            if name != node.name and node.name not in kept:
                instead[node.name] = name
    result = GraphDef(versions=graph_def.versions, library=graph_def.library)
    result.node.extend(node for node in graph_def.node if node.name not in instead)
    for node in result.node:
        for position, text in enumerate(node.input):
            endpoint = parse_input(text)
            if endpoint.node in instead:
                node.input[position] = f"{'^' if endpoint.is_control else ''}{instead[endpoint.node]}"
        if len({*node.input}) < len(node.input):  # several control edges from merged constants
            data = [text for text in node.input if not text.startswith("^")]
            edges = dict.fromkeys(text for text in node.input if text.startswith("^"))
            del node.input[:]
            node.input.extend([*data, *edges])
    return result
