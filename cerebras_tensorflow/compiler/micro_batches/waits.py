"""Moves writes of variables (UPDATE_OPS) from the gradients of a step to its update."""

from __future__ import annotations

from collections.abc import Sequence, Set

from cerebras_tensorflow.compiler.micro_batches.writes import find_writes, variables_of
from cerebras_tensorflow.errors import CompileError
from cerebras_tensorflow.graph.nodes import GraphDef, NodeDef, NodeTable, copied
from cerebras_tensorflow.graph.variables import READ_OPS


def without_waits_for_writes(graph_def: GraphDef, marked: Sequence[str], train_node: str) -> GraphDef:
    """Return the step without control edges from writes to gradients. The train op waits for these writes instead.

    `with tf.control_dependencies(update_ops): train_op = optimizer.minimize(loss)` makes the gradients wait for writes
    of moving averages. In micro-batches, these writes belong to the update.

    Args:
        graph_def: The step.
        marked: Ops of the gradients.
        train_node: Name of the train op.

    Raises:
        CompileError: If a gradient depends on a write in another way.
    """
    table = NodeTable(graph_def)
    marked = [name for name in marked if name in table.nodes]
    writers = find_writes(table)
    after_writes = writers | table.descendants(writers)
    upstream = table.ancestors(marked)
    _check_reads(table, upstream, writers)
    moved: dict[str, None] = {}
    result = GraphDef(versions=graph_def.versions, library=graph_def.library)
    for node in graph_def.node:
        waits = [text for text in node.input if text.startswith("^") and text[1:] in after_writes]
        if node.name in upstream and waits:
            moved.update(dict.fromkeys(waits))
            node = _with_inputs(node, [text for text in node.input if text not in waits])
        result.node.append(node)
    table = NodeTable(result)
    written = sorted(table.ancestors(marked) & writers)
    if written:
        raise _refusal(table, written[0])
    train = table.nodes[train_node]
    train.input.extend(text for text in moved if text not in train.input)
    return result


def _check_reads(table: NodeTable, upstream: Set[str], writers: Set[str]) -> None:
    """Check that the gradients read no variable after its write in the same step.

    Raises:
        CompileError: If they do.
    """
    for write in sorted(writers & upstream):
        handles = variables_of(table, write)
        later = table.descendants([write]) & upstream
        if any(table.nodes[name].op in READ_OPS and handles & variables_of(table, name) for name in later):
            raise _refusal(table, write)


def _refusal(table: NodeTable, write: str) -> CompileError:
    return CompileError(
        f"micro-batches: {write} ({table.nodes[write].op}) changes a variable before the gradients are known, so "
        "micro-batches would see different values. Let the loss take the variable's old value, or set micro_batch_size "
        "to none."
    )


def _with_inputs(node: NodeDef, inputs: Sequence[str]) -> NodeDef:
    new = copied(node)
    del new.input[:]
    new.input.extend(inputs)
    return new
