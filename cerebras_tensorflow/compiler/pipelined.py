"""Pipelined execution: the whole graph and all its variables are resident; nothing moves during a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cerebras_tensorflow.compiler.memory.budget import overhead_bytes
from cerebras_tensorflow.compiler.memory.liveness import find_values, memory_curve
from cerebras_tensorflow.compiler.memory.loops import values_kept_by_loops
from cerebras_tensorflow.graph.cost import Output
from cerebras_tensorflow.graph.nodes import GraphDef, NodeTable
from cerebras_tensorflow.graph.program import Program, WeightSpec, resident_access_nodes
from cerebras_tensorflow.graph.topological_order import order_nodes
from cerebras_tensorflow.graph.variables import find_variables


def compile_pipelined(
    graph_def: GraphDef, sources: Sequence[str], outputs: Mapping[str, Sequence[Output]], other_bytes: int = 0
) -> Program:
    """Return the pipelined Program of a step.

    Args:
        graph_def: The step, stateless, with reads before writes.
        sources: Names of the batch's placeholders.
        outputs: Outputs of each op. If empty, the memory of values is unknown and counts as 0.
        other_bytes: Memory of the step besides this part: StreamingOptions.other_bytes.
    """
    table = NodeTable(graph_def)
    resident = [*find_variables(table).values()]
    dtypes = {v.handle: table.nodes[v.handle].attr["dtype"].type for v in resident}
    result = GraphDef(versions=graph_def.versions, library=graph_def.library)
    result.node.extend(graph_def.node)
    result.node.extend(resident_access_nodes(resident, dtypes))
    order = order_nodes(table, sources=sources) if outputs else []
    values = [*find_values(table, order, outputs), *values_kept_by_loops(table, order, outputs)]
    curve = memory_curve(values, len(order))
    overhead = overhead_bytes(values, int(curve.max(initial=0)), None, len(order))
    specs = tuple(WeightSpec.of(variable) for variable in resident)
    return Program(
        "pipelined",
        result,
        None,
        (),
        specs,
        order=tuple(order),
        value_curve=tuple(curve.tolist()),
        overhead_bytes=overhead + other_bytes,
    )
