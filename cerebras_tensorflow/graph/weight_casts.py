"""Mixed precision: a weight is cast for each op that takes the result, instead of once for all.

A cast that forward and backward pass share would keep a copy of the weight in memory from the one to the other. A cast
of its own for each use costs a pass over the weight, and lets the weight come and go between the two.
"""

from __future__ import annotations

from collections.abc import Container

from cerebras_tensorflow.graph.nodes import Endpoint, GraphDef, NodeDef, NodeTable, parse_input


def cast_for_each_use(graph_def: GraphDef, weights: Container[str]) -> GraphDef:
    """Return a graph in which casts of weights are not shared.

    Args:
        graph_def: A step.
        weights: Names of the VarHandleOps whose casts are meant.
    """
    table = NodeTable(graph_def)
    copies: dict[str, list[NodeDef]] = {}
    moved: dict[tuple[str, str], str] = {}  # (user, cast) -> copy
    for name, node in table.nodes.items():
        if node.op != "Cast" or not _is_of_weight(table, name, weights):
            continue
        users = [user for user in table.consumers[name] if Endpoint(name, 0) in table.inputs[user]]
        for number, user in enumerate(users[1:]):
            copy = NodeDef.FromString(node.SerializeToString())
            copy.name = f"{name}/cs_copy_{number}"
            copies.setdefault(name, []).append(copy)
            moved[(user, name)] = copy.name
    if not copies:
        return graph_def
    result = GraphDef(versions=graph_def.versions, library=graph_def.library)
    for node in graph_def.node:
        new = result.node.add()
        new.CopyFrom(node)
        for position, text in enumerate(new.input):
            endpoint = parse_input(text)
            if not endpoint.is_control and (node.name, endpoint.node) in moved:
                new.input[position] = moved[(node.name, endpoint.node)]
        result.node.extend(copies.get(node.name, ()))
    return result


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
