"""Mixed precision: cast a weight once for each use instead of once per step.

If forward and backward pass share a cast, a copy of the weight stays in memory between them. One cast per use costs
another pass over the weight, but the weight can leave memory between its uses.
"""

from __future__ import annotations

from collections.abc import Container

from cerebras_tensorflow.graph.nodes import Endpoint, NodeDef, NodeTable, copied, parse_input


def cast_for_each_use(table: NodeTable, weights: Container[str]) -> NodeTable:
    """Change a graph so that no two ops share a cast of a weight. Return its new table.

    Args:
        table: A step. Its graph is changed, since a copy of a large one takes hundreds of megabytes.
        weights: Names of the VarHandleOps of these weights.
    """
    graph_def = table.graph_def
    copies: dict[str, list[NodeDef]] = {}
    moved: dict[tuple[str, str], str] = {}  # (user, cast) -> copy
    for name, node in table.nodes.items():
        if node.op != "Cast" or not _is_of_weight(table, name, weights):
            continue
        users = [user for user in table.consumers[name] if Endpoint(name, 0) in table.inputs[user]]
        for number, user in enumerate(users[1:]):
            copy = copied(node)
            copy.name = f"{name}/cs_copy_{number}"
            copies.setdefault(name, []).append(copy)
            moved[(user, name)] = copy.name
    for (user, cast), copy_name in moved.items():
        node = table.nodes[user]
        for position, text in enumerate(node.input):
            endpoint = parse_input(text)
            if not endpoint.is_control and endpoint.node == cast:
                node.input[position] = copy_name
    for name in sorted(copies, key=table.index.__getitem__, reverse=True):
        for copy in reversed(copies[name]):
            graph_def.node.insert(table.index[name] + 1, copy)
    return NodeTable(graph_def) if copies else table


def _is_of_weight(table: NodeTable, cast: str, weights: Container[str]) -> bool:
    source = table.data_inputs(cast)[0].node
    while table.nodes[source].op in ("Identity", "Switch"):
        source = table.data_inputs(source)[0].node
    if table.nodes[source].op != "ReadVariableOp":
        return False
    handle = table.data_inputs(source)[0].node
    while table.nodes[handle].op in ("Identity", "Switch"):
        handle = table.data_inputs(handle)[0].node
    return handle in weights
