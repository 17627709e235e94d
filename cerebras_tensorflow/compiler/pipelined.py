"""Pipelined execution: the whole graph and all its variables are resident; nothing moves during a step."""

from __future__ import annotations

from cerebras_tensorflow.graph.nodes import GraphDef, NodeTable
from cerebras_tensorflow.graph.program import Program, WeightSpec, resident_access_nodes
from cerebras_tensorflow.graph.variables import find_variables


def compile_pipelined(graph_def: GraphDef) -> Program:
    """Return the pipelined Program of a step.

    Args:
        graph_def: The step, stateless, with reads before writes.
    """
    table = NodeTable(graph_def)
    resident = [variable for variable in find_variables(table).values() if variable.shape is not None]
    dtypes = {v.handle: table.nodes[v.handle].attr["dtype"].type for v in resident}
    result = GraphDef(versions=graph_def.versions, library=graph_def.library)
    result.node.extend(graph_def.node)
    result.node.extend(resident_access_nodes(resident, dtypes))
    return Program("pipelined", result, None, (), tuple(WeightSpec.of(variable) for variable in resident))
