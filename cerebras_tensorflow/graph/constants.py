"""Merge equal constants.

Many nodes of a step are constants: shapes, permutations, and the bounds of weight slices. TensorFlow keeps several
copies of each node, 10 kB in all, so merging constants makes the graph of a deep model much smaller.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from cerebras_tensorflow.graph.nodes import NodeDef

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


def take_instead(inputs: Iterable[str], instead: Mapping[str, str]) -> list[str]:
    """Return the inputs of a node with constants replaced.

    Args:
        inputs: The node's inputs, as in a NodeDef.
        instead: Constant -> the equal one to take.
    """
    texts = [_taken(text, instead) for text in inputs]
    if len({*texts}) < len(texts):  # several control edges from merged constants
        edges = dict.fromkeys(text for text in texts if text.startswith("^"))
        texts = [*(text for text in texts if not text.startswith("^")), *edges]
    return texts


def _taken(text: str, instead: Mapping[str, str]) -> str:
    if text.startswith("^"):
        return f"^{instead.get(text[1:], text[1:])}"
    return instead.get(text.removesuffix(":0"), text)
