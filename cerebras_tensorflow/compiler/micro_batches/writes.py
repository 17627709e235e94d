"""Finds the ops of a step that may change variables, directly or in a function."""

from __future__ import annotations

from cerebras_tensorflow.graph.function_calls import called_functions, functions_that
from cerebras_tensorflow.graph.nodes import NodeTable
from cerebras_tensorflow.graph.variables import may_change_model


def find_writes(table: NodeTable) -> frozenset[str]:
    """Return the names of the ops that may change a variable, and of the calls of functions that may."""
    library = {function.signature.name: function for function in table.graph_def.library.function}
    writing = functions_that(may_change_model, library)
    return frozenset(
        name
        for name, node in table.nodes.items()
        if may_change_model(node.op) or (writing and not writing.isdisjoint(called_functions(node, writing)))
    )


def variables_of(table: NodeTable, write: str) -> frozenset[str]:
    """Return the VarHandleOps that an op takes, in a branch or a loop too. A write takes one, a call any number."""
    handles = set()
    for endpoint in table.data_inputs(write):
        while table.nodes[endpoint.node].op in ("Identity", "Switch", "Enter"):
            endpoint = table.data_inputs(endpoint.node)[0]
        if table.nodes[endpoint.node].op == "VarHandleOp":
            handles.add(endpoint.node)
    return frozenset(handles)
