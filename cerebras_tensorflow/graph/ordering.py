"""Reads of a variable come before its update within a step, by an edge rather than by luck.

TensorFlow orders a ReadVariableOp and an update of the same variable only where data flows between them. In practice
the reads, which need nothing, run first; a program that streams weights has to be able to rely on it.
"""

from __future__ import annotations

from collections.abc import Iterable

from cerebras_tensorflow.graph.nodes import GraphDef, NodeTable
from cerebras_tensorflow.graph.variables import Touch, Variable, find_variables


def reads_before_writes(graph_def: GraphDef, train_node: str) -> GraphDef:
    """Return the graph with a control edge from each first read of a variable to each of its writes in a step.

    A read that itself comes after a write stays where it is.

    Args:
        graph_def: The graph.
        train_node: Name of the train op; what it does not need (an initializer) is no write of the step.
    """
    table = NodeTable(graph_def)
    within = table.ancestors([train_node])
    added: dict[str, list[str]] = {}
    for variable in find_variables(table, within).values():
        for write, reads in read_write_pairs(table, variable):
            known = {endpoint.node for endpoint in table.inputs[write]}
            added.setdefault(write, []).extend(read for read in reads if read not in known)
    result = GraphDef(versions=graph_def.versions, library=graph_def.library)
    for node in graph_def.node:
        if added.get(node.name):
            node = type(node).FromString(node.SerializeToString())
            node.input.extend(f"^{read}" for read in dict.fromkeys(added[node.name]))
        result.node.append(node)
    return result


def read_write_pairs(table: NodeTable, variable: Variable) -> Iterable[tuple[str, list[str]]]:
    """Yield each write of a variable with the reads that must precede it.

    Reads inside a branch (behind a Switch) are left out: an edge from one would carry its branch's deadness.
    """
    writes = {touch.node for touch in variable.writes}
    later = table.descendants(writes)
    first_reads = [touch.node for touch in variable.reads if touch.node not in later and not touch.switches]
    for write in writes:
        yield write, [read for read in first_reads if read != write]


def first_reads(table: NodeTable, variable: Variable) -> tuple[list[Touch], list[Touch]]:
    """Return (reads of the value before any write, reads of the value after one) of a variable."""
    later = table.descendants(touch.node for touch in variable.writes)
    before = [touch for touch in variable.reads if touch.node not in later]
    return before, [touch for touch in variable.reads if touch.node in later]
