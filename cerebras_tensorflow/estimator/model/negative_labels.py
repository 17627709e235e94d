"""Labels of -1 (variable sequence length): no loss and no gradient, as on the original system.

TensorFlow's op refuses such labels on a CPU. We replace its node with ops that give the same bits for all other labels.
"""

from __future__ import annotations

import numpy as np

from cerebras_tensorflow.graph.nodes import GraphDef, NodeDef, NodeTable, constant_node, parse_input

_CROSS_ENTROPY = "SparseSoftmaxCrossEntropyWithLogits"
_LABEL_TYPES: dict[int, type[np.generic]] = {3: np.int32, 9: np.int64}  # DT_INT32, DT_INT64


def ignore_negative_labels(graph_def: GraphDef) -> GraphDef:
    """Return a graph whose sparse softmax cross-entropies have loss and gradient 0 for negative labels.

    The loss keeps its node's name. We mask the gradient where it is smallest. With tf.gradients this is a factor with
    one number per label, otherwise the op's output with one number per logit.
    """
    if not any(node.op == _CROSS_ENTROPY for node in graph_def.node):
        return graph_def
    table = NodeTable(graph_def)
    edits: dict[str, NodeDef] = {}
    added: dict[str, list[NodeDef]] = {}
    for node in graph_def.node:
        if node.op == _CROSS_ENTROPY:
            _replace(node, table, edits, added)
    result = GraphDef(versions=graph_def.versions, library=graph_def.library)
    for node in graph_def.node:
        result.node.extend(added.get(node.name, ()))
        result.node.append(edits.get(node.name, node))
    return result


def _replace(node: NodeDef, table: NodeTable, edits: dict[str, NodeDef], added: dict[str, list[NodeDef]]) -> None:
    name = node.name
    logits, labels, *controls = node.input
    kind = node.attr["T"].type
    label_kind = node.attr["Tlabels"].type or 9
    no_label = constant_node(f"{name}/no_label", _LABEL_TYPES[label_kind](0))
    zero = constant_node(f"{name}/zero", np.float32(0))
    zero_as = _node(f"{name}/zero_as", "Cast", [zero.name], SrcT=1, DstT=kind)
    is_counted = _node(f"{name}/is_counted", "GreaterEqual", [labels, no_label.name], T=label_kind)
    label = _node(f"{name}/label", "Maximum", [labels, no_label.name], T=label_kind)
    every = NodeDef()
    every.CopyFrom(node)
    every.name = f"{name}/every"
    every.ClearField("input")
    every.input.extend([logits, label.name, *controls])
    added[name] = [no_label, zero, zero_as, is_counted, label, every]
    edits[name] = _node(name, "SelectV2", [is_counted.name, every.name, zero_as.name], T=kind)
    gradient = f"{every.name}:1"
    users = [user for user in table.consumers[name] if f"{name}:1" in table.nodes[user].input]
    factors = {user: _factor(user, f"{name}:1", table) for user in users}
    if None in factors.values():
        axis = constant_node(f"{name}/axis", np.int32(-1))
        row = _node(f"{name}/is_row_counted", "ExpandDims", [is_counted.name, axis.name], T=10, Tdim=3)
        rows = _node(f"{name}/rows", "SelectV2", [row.name, gradient, zero_as.name], T=kind)
        added[name] += [axis, row, rows]
        gradient = rows.name
    else:
        for factor in factors.values():
            assert factor is not None
            edited = _edited(factor, table, edits)
            counted = _node(f"{factor}/counted", "SelectV2", [is_counted.name, edited.input[0], zero_as.name], T=kind)
            added.setdefault(factor, []).append(counted)
            edited.input[0] = counted.name
    for user in users:
        edited = _edited(user, table, edits)
        for number, text in enumerate(edited.input):
            if text == f"{name}:1":
                edited.input[number] = gradient


def _factor(user: str, gradient: str, table: NodeTable) -> str | None:
    """If a node is ExpandDims(...) * gradient, return the name of the ExpandDims; else None."""
    node = table.nodes[user]
    if node.op != "Mul":
        return None
    others = [text for text in node.input if text != gradient and not text.startswith("^")]
    if len(others) != 1:
        return None
    other = parse_input(others[0]).node
    return other if table.nodes[other].op == "ExpandDims" and table.consumers[other] == [user] else None


def _edited(name: str, table: NodeTable, edits: dict[str, NodeDef]) -> NodeDef:
    """Return the copy that replaces a node; make it on first use."""
    if name not in edits:
        edits[name] = NodeDef()
        edits[name].CopyFrom(table.nodes[name])
    return edits[name]


def _node(name: str, op: str, inputs: list[str], **types: int) -> NodeDef:
    node = NodeDef(name=name, op=op, input=inputs)
    for attribute, kind in types.items():
        node.attr[attribute].type = kind
    return node
