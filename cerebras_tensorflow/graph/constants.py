"""Merge equal constants.

Many nodes of a step are constants: shapes, permutations, and the bounds of weight slices. TensorFlow keeps several
copies of each node, 10 kB in all, so merging constants makes the graph of a deep model much smaller.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from cerebras_tensorflow.graph.nodes import NodeDef, parse_input

_MOST_BYTES = 1 << 12  # larger constants are rare and slow to compare


def equal_constants(nodes: Iterable[NodeDef], kept: Container[str]) -> dict[str, str]:
    """Return constant -> an equal one that comes before it. The users of the first can take the second.

    Constants with control inputs are left out, for example those in branches and loops.

    Args:
        nodes: The nodes of a step.
        kept: Names of nodes that must stay.
    """
    first: dict[tuple[str, bytes], str] = {}
    instead: dict[str, str] = {}
    for node in nodes:
        if node.op == "Const" and not node.input and node.attr["value"].ByteSize() <= _MOST_BYTES:
            key = (node.device, node.attr["value"].SerializeToString(deterministic=True))
            name = first.setdefault(key, node.name)
            if name != node.name and node.name not in kept:
                instead[node.name] = name
    return instead


def take_instead(node: NodeDef, instead: Mapping[str, str]) -> None:
    """Replace constants among the inputs of a node. The node is changed.

    Args:
        node: The node.
        instead: Constant -> the equal one to take.
    """
    for position, text in enumerate(node.input):
        endpoint = parse_input(text)
        if endpoint.node in instead:
            node.input[position] = f"{'^' if endpoint.is_control else ''}{instead[endpoint.node]}"
    if len({*node.input}) < len(node.input):  # several control edges from merged constants
        data = [text for text in node.input if not text.startswith("^")]
        edges = dict.fromkeys(text for text in node.input if text.startswith("^"))
        del node.input[:]
        node.input.extend([*data, *edges])
