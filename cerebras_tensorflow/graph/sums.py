"""Fix the order of sums: each AddN becomes a chain of AddV2.

The kernel of AddN accumulates into the first input whose buffer is not in use elsewhere. Which input that is depends on
timing, fetches and spilling, and so do the last bits of the result. AddV2 always computes `x + y`. AccumulateNV2 has no
kernel: TensorFlow adds its inputs in the order of arrival. We replace it with the same chain.

ParallelDynamicStitch writes rows that occur twice in any order. We replace it with DynamicStitch, which keeps the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import tensorflow as tf

from cerebras_tensorflow.graph.bodies import control_inputs, data_inputs, source_of
from cerebras_tensorflow.graph.nodes import FunctionDef, GraphDef, NodeDef, copied

_SUMS = frozenset({"AddN", "AccumulateNV2"})
_ONLY_OF_SUMS = ("N", "shape")  # attributes that AddV2 does not have


def fix_order_of_sums(graph_def: GraphDef) -> tuple[GraphDef, dict[str, str]]:
    """Return the graph with each AddN and AccumulateNV2 as a chain of additions, also in function bodies.

    Each ParallelDynamicStitch becomes a DynamicStitch.

    `a + b + c` becomes `(a + b) + c`, in the order of the inputs. Each partial sum comes right after the later of its
    two inputs, so that memory is freed early. The last addition keeps the name, control edges and position of the AddN.
    All additions keep its device and colocation. AddV2 does not take variants (lists of tensors), so their sums become
    a chain of AddN with two inputs.

    AddN refuses inputs of different shapes. AddV2 broadcasts them if the shapes are unknown before the run.

    Args:
        graph_def: A step. It is not changed.

    Returns:
        The graph, and new node -> original sum with the same shape and dtype (in the main graph only).
    """
    result = GraphDef(versions=graph_def.versions, library=graph_def.library)
    nodes, partial_of = _replace_sums(graph_def.node, lambda name, _: name)
    result.node.extend(nodes)
    for function in result.library.function:
        _fix_function(function)
    return result, partial_of


def _fix_function(function: FunctionDef) -> None:
    """Replace the sums of a function's body in place. Its inputs refer to outputs by name, such as "z"."""
    outputs = {
        f"{node.name}:sum:0": f"{node.name}:z:0"
        for node in function.node_def
        if _is_replaceable(node) and not _is_variant(node)
    }
    nodes, _ = _replace_sums(function.node_def, lambda name, output: f"{name}:{output}:0")
    for node in nodes:
        _rename_inputs(node, outputs)
    del function.node_def[:]
    function.node_def.extend(nodes)
    for key, source in list(function.ret.items()):
        function.ret[key] = outputs.get(source, source)


def _rename_inputs(node: NodeDef, outputs: Mapping[str, str]) -> None:
    for position, text in enumerate(node.input):
        if text in outputs:
            node.input[position] = outputs[text]


def _replace_sums(nodes: Iterable[NodeDef], refer: Callable[[str, str], str]) -> tuple[list[NodeDef], dict[str, str]]:
    """Return copies of the nodes with the sums replaced, and new node -> the sum that it belongs to.

    Args:
        nodes: Nodes of a graph or of a function's body.
        refer: (node, name of its output) -> input string.
    """
    nodes = list(nodes)
    index = {node.name: position for position, node in enumerate(nodes)}
    following: dict[int, list[NodeDef]] = {}
    chains: dict[str, list[NodeDef]] = {}
    for node in nodes:
        if _is_replaceable(node):
            chains[node.name] = _chain(node, refer)
    for name, chain in chains.items():
        place = 0
        for partial in chain[:-1]:
            sources = [source_of(text) for text in partial.input]
            place = max([place, *(index[source] for source in sources if source in index)])
            following.setdefault(min(place, index[name] - 1), []).append(partial)
    result = list(following.get(-1, ()))
    for position, node in enumerate(nodes):
        copy = NodeDef()
        copy.CopyFrom(chains[node.name][-1] if node.name in chains else node)
        if copy.op == "ParallelDynamicStitch":
            copy.op = "DynamicStitch"
        result.extend([copy, *following.get(position, ())])
    return result, {part.name: name for name, chain in chains.items() for part in chain[:-1]}


def _is_replaceable(node: NodeDef) -> bool:
    """Whether a node is a sum of two or more inputs that are all listed; a function may leave N open."""
    num_inputs = len(data_inputs(node))
    return node.op in _SUMS and num_inputs == node.attr["N"].i and num_inputs > 1


def _is_variant(node: NodeDef) -> bool:
    return bool(node.attr["T"].type == tf.variant.as_datatype_enum)


def _chain(node: NodeDef, refer: Callable[[str, str], str]) -> list[NodeDef]:
    """Return the additions that replace a sum; the last one has its name."""
    op, output = ("AddN", "sum") if _is_variant(node) else ("AddV2", "z")
    data = data_inputs(node)
    total, chain = data[0], []
    for number, source in enumerate(data[1:-1], 1):
        name = f"{node.name}/cs_sum_{number}"
        chain.append(_addition(node, name, op, [total, source]))
        total = refer(name, output)
    chain.append(_addition(node, node.name, op, [total, data[-1], *control_inputs(node)]))
    return chain


def _addition(node: NodeDef, name: str, op: str, inputs: Iterable[str]) -> NodeDef:
    new = copied(node)
    new.name, new.op = name, op
    del new.input[:]
    new.input.extend(inputs)
    for attribute in _ONLY_OF_SUMS:
        new.attr.pop(attribute, None)
    if op == "AddN":
        new.attr["N"].i = 2
    return new
